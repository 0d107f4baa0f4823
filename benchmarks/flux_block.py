# SPDX-License-Identifier: Apache-2.0
"""A FLUX.2 transformer of 129 million parameters, eager on neuron against eager on the CPU.

f32_ratio, bf16_ratio   time on neuron / time on the CPU, programs compiled
peak_memory_ratio       peak memory of a process on neuron / on the CPU, the worse of both dtypes
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path

import torch

from .measure import child, interleaved, print_result, print_table, seconds

IMAGE_TOKENS, TEXT_TOKENS = 1024, 128
ROUNDS = 5
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}


def make_call(device: str, dtype: torch.dtype) -> Callable[[], torch.Tensor]:
    """A function that runs the transformer once, until its result is there."""
    from diffusers import Flux2Transformer2DModel

    torch.manual_seed(0)
    torch.set_default_dtype(dtype)  # makes the weights in this dtype: no detour through float32
    model = Flux2Transformer2DModel(
        in_channels=128,
        num_layers=2,
        num_single_layers=4,
        attention_head_dim=128,
        num_attention_heads=8,
        joint_attention_dim=1024,
        guidance_embeds=False,
    )
    torch.set_default_dtype(torch.float32)
    model = model.to(device).eval()
    side = int(IMAGE_TOKENS**0.5)
    one = torch.arange(1)
    inputs = {
        "hidden_states": torch.randn(1, IMAGE_TOKENS, 128).to(dtype),
        "encoder_hidden_states": torch.randn(1, TEXT_TOKENS, 1024).to(dtype),
        "timestep": torch.tensor([0.5], dtype=dtype),
        "img_ids": torch.cartesian_prod(one, torch.arange(side), torch.arange(side), one),
        "txt_ids": torch.cartesian_prod(one, one, one, torch.arange(TEXT_TOKENS)),
    }
    inputs = {name: value.to(device) for name, value in inputs.items()}

    @torch.no_grad()
    def call() -> torch.Tensor:
        result = model(**inputs, return_dict=False)[0]
        if device != "cpu":
            torch.neuron.synchronize()
        return result

    return call


def peak_memory(device: str, dtype: str) -> int:
    """Peak memory in kB of a process that runs the transformer three times."""
    return child("benchmarks.flux_block", "--peak", device, dtype)["peak_kb"]


def measure_peak(device: str, dtype: str) -> None:
    call = make_call(device, DTYPES[dtype])
    for _ in range(3):
        call()
    # Not ru_maxrss: that begins with the memory of the parent, from before it became this program.
    status = Path("/proc/self/status").read_text()
    print(json.dumps({"peak_kb": int(status.split("VmHWM:")[1].split()[0])}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--peak", nargs=2, metavar=("DEVICE", "DTYPE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.peak:
        measure_peak(*options.peak)
        return

    rows, result = [], {}
    for name, dtype in DTYPES.items():
        calls = {device: make_call(device, dtype) for device in ("neuron", "cpu")}
        outputs = {device: call().cpu().float() for device, call in calls.items()}  # compiles
        calls["neuron"]()
        times = interleaved(ROUNDS, {device: lambda call=call: seconds(call) for device, call in calls.items()})
        difference = (outputs["neuron"] - outputs["cpu"]).abs().max() / outputs["cpu"].abs().max()
        result[f"{name}_ratio"] = times["neuron"] / times["cpu"]
        rows.append(
            (
                f"{name}: neuron, CPU, ratio",
                f"{times['neuron']:.3f} s  {times['cpu']:.3f} s  {result[f'{name}_ratio']:.2f}  "
                f"(results differ by {difference:.1e} of the largest)",
            )
        )
        del calls
    peaks = {(device, dtype): peak_memory(device, dtype) for device in ("neuron", "cpu") for dtype in DTYPES}
    ratios = {dtype: peaks["neuron", dtype] / peaks["cpu", dtype] for dtype in DTYPES}
    for dtype, ratio in ratios.items():
        megabytes = [peaks[device, dtype] / 1024 for device in ("neuron", "cpu")]
        rows.append((f"{dtype}: peak memory", f"{megabytes[0]:.0f} MB  {megabytes[1]:.0f} MB  {ratio:.2f}"))
    result["peak_memory_ratio"] = max(ratios.values())
    print_table(rows)
    print_result(result)


if __name__ == "__main__":
    main()
