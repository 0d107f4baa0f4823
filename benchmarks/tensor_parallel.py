# SPDX-License-Identifier: Apache-2.0
"""A FLUX.2 transformer of 129 million parameters sharded over two ranks, against one rank; one thread for each rank.

eager_speedup, compiled_speedup   time on one rank / time on two, bfloat16, programs compiled
communication_share               of the compiled time on two ranks: collectives, waiting for the other rank included
memory_ratio                      device memory of the weights, of each of two ranks / of one rank

A rank holds its part of what Diffusers' plan shards, and all of the rest: modulations, embedders and the last norm. The
plan's share of this model, and of FLUX.2 klein, whose wide blocks leave little outside of it, is printed too.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from .flux_model import CONFIG, KLEIN_CONFIG, make_inputs, make_model
from .measure import print_result, print_table, seconds

IMAGE_TOKENS = 1024
ROUNDS = 5


def planned_share(config: dict[str, Any], ranks: int) -> float:
    """Of the weights, what each of `ranks` ranks holds when they are sharded by Diffusers' plan."""
    from diffusers import Flux2Transformer2DModel
    from diffusers.hooks.tensor_parallel import resolve_tp_shard_specs

    with torch.device("meta"):
        model = Flux2Transformer2DModel(**config)
    specs = resolve_tp_shard_specs(model, model._tp_plan, ranks)
    total = held = 0.0
    for name, parameter in model.named_parameters():
        sharded = name in specs and specs[name].dim is not None
        total += parameter.numel()
        held += parameter.numel() / (ranks if sharded else 1)
    return held / total


class Bytes(NamedTuple):
    """Of the weights on the device, and the most there was while they were sharded and moved there."""

    held: int
    peak: int


def make_call(mode: str, ranks: int) -> tuple[Callable[[], torch.Tensor], Bytes]:
    """A function that runs the transformer once, until its result is there; and the bytes of its weights."""
    from diffusers import TensorParallelConfig
    from torch.distributed.device_mesh import DeviceMesh

    model = make_model(torch.bfloat16)
    before = torch.neuron.memory_allocated()
    torch.neuron.reset_peak_memory_stats()
    if ranks > 1:
        mesh = DeviceMesh("neuron", list(range(ranks)))
        model.enable_parallelism(config=TensorParallelConfig(mesh=mesh))
    model = model.to("neuron")
    torch.neuron.synchronize()
    weights = Bytes(torch.neuron.memory_allocated() - before, torch.neuron.max_memory_allocated() - before)
    if mode == "compiled":
        model.compile(backend="neuron", fullgraph=True, dynamic=False)
    inputs = make_inputs(IMAGE_TOKENS, torch.bfloat16, "neuron")

    @torch.no_grad()
    def call() -> torch.Tensor:
        result = model(**inputs, return_dict=False)[0]
        torch.neuron.synchronize()
        return result

    return call, weights


def measure(ranks: int) -> dict[str, float]:
    """Of this rank: seconds per call eager and compiled, the share of communication, and the bytes of the weights."""
    import torch.distributed as dist

    from torch_neuronx import _C

    dist.init_process_group("neuron")
    figures: dict[str, float] = {}
    for mode in ("eager", "compiled"):
        call, (figures["weights"], figures["peak"]) = make_call(mode, ranks)
        call()
        call()
        times, shares = [], []
        for _ in range(ROUNDS):
            dist.barrier()
            before = _C.collective_nanoseconds()
            times.append(seconds(call))
            shares.append((_C.collective_nanoseconds() - before) * 1e-9 / times[-1])
        figures[mode] = statistics.median(times)
        figures[f"{mode}_share"] = statistics.median(shares)
        del call
        torch._dynamo.reset()
    dist.destroy_process_group()
    return figures


def run(ranks: int) -> list[dict[str, float]]:
    """What each rank measures."""
    with tempfile.TemporaryDirectory() as folder:
        processes = []
        for rank in range(ranks):
            environment = {
                **os.environ,
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(ranks),
                "LOCAL_WORLD_SIZE": str(ranks),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": "29571",
                "NPROC": "1",
                "OMP_NUM_THREADS": "1",
            }
            command = [sys.executable, "-m", "benchmarks.tensor_parallel", "--ranks", str(ranks)]
            output = open(f"{folder}/{rank}", "w+")
            processes.append((subprocess.Popen(command, env=environment, stdout=output), output))
        figures = []
        for process, output in processes:
            if process.wait() != 0:
                raise RuntimeError(f"a rank of {ranks} failed")
            output.seek(0)
            figures.append(json.loads(output.read().strip().splitlines()[-1]))
            output.close()
        return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, help="measure as one of so many ranks (used by the benchmark itself)")
    arguments = parser.parse_args()
    if arguments.ranks is not None:
        print(json.dumps(measure(arguments.ranks)))
        return
    (one,) = run(1)
    two = run(2)
    slowest = {mode: max(rank[mode] for rank in two) for mode in ("eager", "compiled")}
    share = max(rank["compiled_share"] for rank in two)
    print_table(
        [
            *[(f"{mode}, 1 rank", f"{one[mode]:.3f} s") for mode in ("eager", "compiled")],
            *[
                (
                    f"{mode}, 2 ranks",
                    f"{slowest[mode]:.3f} s, {max(r[mode + '_share'] for r in two):.1%} in collectives",
                )
                for mode in ("eager", "compiled")
            ],
            ("weights, 1 rank", f"{one['weights'] / 2**20:.0f} MiB"),
            (
                "weights, each of 2 ranks",
                f"{two[0]['weights'] / 2**20:.0f} MiB, {two[0]['peak'] / 2**20:.0f} MiB at most on the way there",
            ),
            *[
                (
                    f"{name}, by the plan",
                    ", ".join(f"{planned_share(config, ranks):.1%} on each of {ranks}" for ranks in (2, 4, 8)),
                )
                for name, config in (("this model", CONFIG), ("FLUX.2 klein", KLEIN_CONFIG))
            ],
        ]
    )
    print_result(
        {
            "eager_speedup": one["eager"] / slowest["eager"],
            "compiled_speedup": one["compiled"] / slowest["compiled"],
            "communication_share": share,
            "memory_ratio": max(rank["weights"] for rank in two) / one["weights"],
        }
    )


if __name__ == "__main__":
    main()
