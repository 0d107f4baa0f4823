# SPDX-License-Identifier: Apache-2.0
"""Paints an image with FLUX.2 klein whose transformer is sharded over NeuronCores, a process each.

    torchrun --nproc_per_node=8 examples/tensor_parallel_neuron.py
    torchrun --nproc_per_node=2 examples/tensor_parallel_neuron.py --model PATH-OR-NAME --mode compile
    torchrun --nnodes=2 --node_rank=0 --master_addr=HOST --nproc_per_node=4 examples/tensor_parallel_neuron.py  # and 1

Without --model it is a small one with random weights and 8 heads, made on the first run in checkpoints/.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
import torch.distributed as dist
from diffusers import Flux2KleinPipeline, Flux2Transformer2DModel, TensorParallelConfig
from torch.distributed.device_mesh import DeviceMesh

TINY_DIRECTORY = Path("checkpoints/tiny-flux2-8-heads")
TINY_SIZE, FULL_SIZE = 256, 1024


def make_tiny_model() -> str:
    """Makes the checkpoint where it is absent: rank 0 first, then one rank of each host that does not see its files."""
    for maker in (dist.get_rank() == 0, torch.neuron.current_device() == 0):
        if maker and not (TINY_DIRECTORY / "model_index.json").exists():
            from make_tiny_flux2 import make_pipeline

            print(f"making a tiny model in {TINY_DIRECTORY} …")
            make_pipeline(num_heads=8).save_pretrained(TINY_DIRECTORY)
        dist.barrier()
    return str(TINY_DIRECTORY)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a directory, or a name on the Hugging Face Hub")
    parser.add_argument("--prompt", default="A cat holding a sign that says hello world")
    parser.add_argument("--mode", choices=["eager", "compile", "blocks"], default="eager")
    parser.add_argument("--size", type=int, help=f"pixels; {FULL_SIZE} by default, {TINY_SIZE} for the tiny model")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dtype", choices=["bfloat16", "float32"], default="bfloat16")
    parser.add_argument("--output", default="output.png")
    arguments = parser.parse_args()

    dist.init_process_group(backend="neuron")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    device = torch.neuron.current_device()
    mesh = DeviceMesh("neuron", list(range(world_size)))

    model = arguments.model or make_tiny_model()
    dtype = getattr(torch, arguments.dtype)
    # Every rank reads only its part of each weight.
    transformer = Flux2Transformer2DModel.from_pretrained(
        model, subfolder="transformer", dtype=dtype, parallel_config=TensorParallelConfig(mesh=mesh)
    )
    pipe = Flux2KleinPipeline.from_pretrained(model, transformer=transformer, dtype=dtype).to(device)
    pipe.set_progress_bar_config(disable=rank > 0)
    if arguments.mode == "compile":
        pipe.transformer.compile(backend="neuron", fullgraph=True, dynamic=False)
    elif arguments.mode == "blocks":
        pipe.transformer.compile_repeated_blocks(backend="neuron", fullgraph=True, dynamic=False)

    size = arguments.size or (FULL_SIZE if arguments.model else TINY_SIZE)
    started = time.perf_counter()
    # The same noise on every rank: the generator is seeded.
    image = pipe(
        prompt=arguments.prompt,
        height=size,
        width=size,
        num_inference_steps=arguments.steps,
        guidance_scale=1.0 if pipe.config.is_distilled else 4.0,
        generator=torch.Generator().manual_seed(arguments.seed),
    ).images[0]
    if rank == 0:
        image.save(arguments.output)
        allocated = torch.neuron.memory_allocated() / 2**20
        print(f"{world_size} ranks, {time.perf_counter() - started:.2f} s, {allocated:.0f} MiB on each core")
        print(f"wrote {arguments.output}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
