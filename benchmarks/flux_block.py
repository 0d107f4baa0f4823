# SPDX-License-Identifier: Apache-2.0
"""A FLUX.2 transformer of 129 million parameters, eager on neuron against eager on the CPU.

f32_ratio, bf16_ratio   time on neuron / time on the CPU, programs compiled
peak_memory_ratio       peak memory of a process on neuron / on the CPU, the worse of both dtypes
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable

import torch

from .flux_model import make_inputs, make_model
from .measure import child, interleaved, peak_bytes, print_result, print_table, seconds

IMAGE_TOKENS = 1024
ROUNDS = 5
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}


def make_call(device: str, dtype: torch.dtype) -> Callable[[], torch.Tensor]:
    """A function that runs the transformer once, until its result is there."""
    model = make_model(dtype).to(device)
    inputs = make_inputs(IMAGE_TOKENS, dtype, device)

    @torch.no_grad()
    def call() -> torch.Tensor:
        result = model(**inputs, return_dict=False)[0]
        if device != "cpu":
            torch.neuron.synchronize()
        return result

    return call


def peak_memory(device: str, dtype: str) -> int:
    """Peak memory in bytes of a process that runs the transformer three times."""
    return child("benchmarks.flux_block", "--peak", device, dtype)["peak_bytes"]


def measure_peak(device: str, dtype: str) -> None:
    call = make_call(device, DTYPES[dtype])
    for _ in range(3):
        call()
    print(json.dumps({"peak_bytes": peak_bytes()}))


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
        megabytes = [peaks[device, dtype] / 2**20 for device in ("neuron", "cpu")]
        rows.append((f"{dtype}: peak memory", f"{megabytes[0]:.0f} MB  {megabytes[1]:.0f} MB  {ratio:.2f}"))
    result["peak_memory_ratio"] = max(ratios.values())
    print_table(rows)
    print_result(result)


if __name__ == "__main__":
    main()
