# SPDX-License-Identifier: Apache-2.0
"""Paints an image with FLUX.2 klein on the neuron device.

    python examples/flux2_klein.py tiny
    python examples/flux2_klein.py tiny --mode compile
    python examples/flux2_klein.py PATH-OR-NAME --height 1024 --width 1024 --prompt "A cat holding a sign"

`tiny` is a small model with random weights, made on the first run in checkpoints/.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
from diffusers import Flux2KleinPipeline

TINY_DIRECTORY = Path("checkpoints/tiny-flux2")
TINY_SIZE, FULL_SIZE = 256, 1024


def load(model: str, dtype: torch.dtype) -> Flux2KleinPipeline:
    """The pipeline on the CPU; the tiny checkpoint is made first where it is absent."""
    if model == "tiny":
        if not (TINY_DIRECTORY / "model_index.json").exists():
            from make_tiny_flux2 import make_pipeline

            print(f"making a tiny model in {TINY_DIRECTORY} …")
            make_pipeline().save_pretrained(TINY_DIRECTORY)
        model = str(TINY_DIRECTORY)
    return Flux2KleinPipeline.from_pretrained(model, dtype=dtype)


def prepare(pipe: Flux2KleinPipeline, mode: str) -> None:
    """eager: every operation is compiled when it first runs. compile: the transformer is one graph, and so is the
    decoder of the VAE. blocks: a repeated block of the transformer is one graph, compiled once."""
    if mode == "compile":
        pipe.transformer.compile(backend="neuron", fullgraph=True, dynamic=False)
    elif mode == "blocks":
        pipe.transformer.compile_repeated_blocks(backend="neuron", fullgraph=True, dynamic=False)
    if mode != "eager":
        pipe.vae.decoder.compile(backend="neuron", fullgraph=True, dynamic=False)


def report(device: str) -> None:
    """What the device did: operators, fallbacks to the CPU, programs compiled and found in the cache."""
    if not device.startswith("neuron"):
        return
    import torch_neuronx
    from torch_neuronx.metrics import get_counter_value

    fallbacks = torch_neuronx.get_fallback_ops()
    print(
        f"{len(torch_neuronx.get_executed_ops())} different operators on {torch.neuron.get_device_name()}; "
        f"on the CPU: {', '.join(fallbacks) or 'none'}; "
        f"programs compiled: {get_counter_value('CompilationCache.TotalCompilations')}, "
        f"found in the cache: {get_counter_value('CompilationCache.PersistentHits')}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a directory, a name on the Hugging Face Hub, or `tiny`")
    parser.add_argument("--prompt", default="A cat holding a sign that says hello world")
    parser.add_argument("--mode", choices=["eager", "compile", "blocks"], default="eager")
    parser.add_argument("--height", type=int, help=f"pixels; {FULL_SIZE} by default, {TINY_SIZE} for tiny")
    parser.add_argument("--width", type=int, help="like --height")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dtype", choices=["bfloat16", "float32"], default="bfloat16")
    parser.add_argument("--device", default="neuron")
    parser.add_argument("--repeat", type=int, default=2, help="how often to paint: the first call compiles")
    parser.add_argument("--output", type=Path, default=Path("output.png"))
    arguments = parser.parse_args()

    size = TINY_SIZE if arguments.model == "tiny" else FULL_SIZE
    pipe = load(arguments.model, getattr(torch, arguments.dtype))
    pipe.to(arguments.device)
    prepare(pipe, arguments.mode)
    for call in range(arguments.repeat):
        started = time.perf_counter()
        image = pipe(
            prompt=arguments.prompt,
            height=arguments.height or size,
            width=arguments.width or size,
            num_inference_steps=arguments.steps,
            # A distilled model needs no guidance, and warns when it is asked for.
            guidance_scale=1.0 if pipe.config.is_distilled else 4.0,
            generator=torch.Generator().manual_seed(arguments.seed),
        ).images[0]
        print(f"call {call + 1}: {time.perf_counter() - started:.2f} s")
    image.save(arguments.output)
    report(arguments.device)
    print(f"wrote {arguments.output}")


if __name__ == "__main__":
    main()
