# SPDX-License-Identifier: Apache-2.0
"""Collectives of the backend `neuron` against plain Gloo on CPU tensors, by message size.

worst_ratio   by size: the largest time on neuron / time with Gloo over 2 and 4 ranks and all collectives measured
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing

SIZES = (8, 1 << 10, 1 << 13, 1 << 16, 1 << 20, 1 << 24, 1 << 26)  # bytes
RANKS = (2, 4)
ROUNDS = 7
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "send_recv")


def make_call(name: str, size: int, device: torch.device, group: dist.ProcessGroup) -> Callable[[], None]:
    """A function that runs the collective once, until its result is there."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    whole = torch.ones(max(ranks, size // 4 // ranks * ranks), device=device)
    part = torch.ones(len(whole) // ranks, device=device)

    def send_recv() -> None:
        if rank % 2:
            dist.recv(whole, rank - 1, group=group)
        else:
            dist.send(whole, rank + 1, group=group)

    other = torch.ones_like(whole)
    return {
        "all_reduce": lambda: dist.all_reduce(whole, group=group),
        "all_gather": lambda: dist.all_gather_into_tensor(whole, part, group=group),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(part, whole, group=group),
        "broadcast": lambda: dist.broadcast(whole, 0, group=group),
        "all_to_all": lambda: dist.all_to_all_single(other, whole, group=group),
        "send_recv": send_recv,
    }[name]


def measure(rank: int, ranks: int, folder: str) -> None:
    """Seconds per call on rank 0, by collective, size and backend, in interleaved blocks; written to a file."""
    import os

    os.environ.update(LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(ranks))
    torch.set_num_threads(1)
    dist.init_process_group("cpu:gloo,neuron:neuron", init_method=f"file://{folder}/store", rank=rank, world_size=ranks)
    group = dist.group.WORLD
    devices = {"gloo": torch.device("cpu"), "neuron": torch.device("neuron", rank)}
    results = {}
    for name in COLLECTIVES:
        for size in SIZES:
            calls = {backend: make_call(name, size, device, group) for backend, device in devices.items()}
            repeats = max(1, min(50, (1 << 22) // size))
            samples: dict[str, list[float]] = {backend: [] for backend in calls}
            for round_ in range(ROUNDS + 1):
                for backend, call in calls.items():
                    dist.barrier(device_ids=[rank])
                    started = time.perf_counter()
                    for _ in range(repeats):
                        call()
                    # A rank is through when all are: what it has sent may still be under way.
                    dist.barrier(device_ids=[rank])
                    if round_:
                        samples[backend].append((time.perf_counter() - started) / repeats)
            results[f"{name} {size}"] = {backend: statistics.median(values) for backend, values in samples.items()}
    if rank == 0:
        (Path(folder) / "results").write_text(json.dumps(results))
    dist.destroy_process_group()


def run(ranks: int) -> dict[str, dict[str, float]]:
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.spawn(measure, args=(ranks, folder), nprocs=ranks)
        return json.loads((Path(folder) / "results").read_text())


def text_of(size: int) -> str:
    for unit in ("B", "KiB", "MiB"):
        if size < 1024 or unit == "MiB":
            return f"{size} {unit}"
        size //= 1024
    raise AssertionError


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.parse_args()
    worst: dict[str, float] = {}
    for ranks in RANKS:
        print(f"{ranks} ranks        size        Gloo µs   neuron µs   ratio   neuron GB/s")
        for key, times in run(ranks).items():
            name, size = key.split()
            ratio = times["neuron"] / times["gloo"]
            label = text_of(int(size))
            worst[label] = max(worst.get(label, 0.0), ratio)
            bandwidth = int(size) / times["neuron"] / 1e9
            print(
                f"{name:<14} {label:>9} {times['gloo'] * 1e6:>13.1f} {times['neuron'] * 1e6:>11.1f} {ratio:>7.2f}"
                f" {bandwidth:>10.3f}"
            )
    print(json.dumps({"worst_ratio": {label: float(f"{ratio:.3g}") for label, ratio in worst.items()}}))


if __name__ == "__main__":
    main()
