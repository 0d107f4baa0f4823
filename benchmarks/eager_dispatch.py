# SPDX-License-Identifier: Apache-2.0
"""What one eager operator costs.

us_per_op           64 operators in a chain on 64x64 float32, until the result is there, per operator
main_thread_us      of that, until the last one is enqueued
cpu_us_per_op       the same chain on the CPU; ratio = us_per_op / cpu_us_per_op
extra_argument_us   what a third tensor argument adds
view_us             what it adds that an argument is a transposed view
idle_round_trip_us  one operator and its result after 1 ms without work
large_ratio         a float32 addition of 1, 16 and 64 MB, neuron to CPU: the worst of the three
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from .measure import interleaved, print_result, print_table

LENGTH = 64
ROUNDS = 25
REPEATS = 20
MEGABYTES = (1, 16, 64)


def synchronize(device: str) -> None:
    if device == "neuron":
        torch.neuron.synchronize()


def chain(device: str) -> Callable[[], torch.Tensor]:
    """A function that runs LENGTH dependent operators."""
    generator = torch.Generator().manual_seed(0)
    x, a, b = (torch.rand(64, 64, generator=generator).to(device) for _ in range(3))

    def run() -> torch.Tensor:
        y = x
        for _ in range(LENGTH // 4):
            y = y * a
            y = y + b
            y = torch.relu(y)
            y = y - b
        return y

    return run


def chain_time(device: str, run: Callable[[], torch.Tensor], enqueue_only: bool = False) -> Callable[[], float]:
    """µs per operator of `run`."""

    def once() -> float:
        synchronize(device)
        spent = 0.0
        for _ in range(REPEATS):
            started = time.perf_counter()
            run()
            if enqueue_only:
                spent += time.perf_counter() - started
            synchronize(device)
            if not enqueue_only:
                spent += time.perf_counter() - started
        return spent / (REPEATS * LENGTH) * 1e6

    return once


def operator_chain(operator: Callable[..., torch.Tensor], *operands: torch.Tensor) -> Callable[[], torch.Tensor]:
    """LENGTH times the same operator on the same operands: only the call differs between two of these."""

    def run() -> torch.Tensor:
        for _ in range(LENGTH):
            y = operator(*operands)
        return y

    return run


def idle_round_trip() -> float:
    """µs of one operator after 1 ms of idleness."""
    x = torch.rand(64, 64).to("neuron")
    samples = []
    for _ in range(REPEATS):
        time.sleep(0.001)
        started = time.perf_counter()
        torch.relu(x)
        synchronize("neuron")
        samples.append(time.perf_counter() - started)
    return sorted(samples)[REPEATS // 2] * 1e6


def addition(device: str, megabytes: int) -> Callable[[], float]:
    """Seconds of one addition of two float32 tensors of that size."""
    a, b = (torch.rand(megabytes * 2**18).to(device) for _ in range(2))

    def once() -> float:
        synchronize(device)
        started = time.perf_counter()
        c = a + b
        synchronize(device)
        spent = time.perf_counter() - started
        del c
        return spent

    return once


def main() -> None:
    small = torch.rand(64, 64).to("neuron")
    two = operator_chain(torch.mul, small, small + 1)
    three = operator_chain(torch.addcmul, small, small + 1, small + 2)
    plain, view = operator_chain(torch.relu, small), operator_chain(torch.relu, small.t())
    cases = {
        "neuron": chain_time("neuron", chain("neuron")),
        "cpu": chain_time("cpu", chain("cpu")),
        "enqueue": chain_time("neuron", chain("neuron"), enqueue_only=True),
        "two": chain_time("neuron", two),
        "three": chain_time("neuron", three),
        "plain": chain_time("neuron", plain),
        "view": chain_time("neuron", view),
        "idle": idle_round_trip,
    }
    for case in cases.values():
        case()  # compiles
    median = interleaved(ROUNDS, cases)

    large = {}
    for megabytes in MEGABYTES:
        both = {device: addition(device, megabytes) for device in ("neuron", "cpu")}
        for case in both.values():
            case()
        times = interleaved(ROUNDS, both)
        large[megabytes] = times["neuron"] / times["cpu"]

    result = {
        "us_per_op": median["neuron"],
        "main_thread_us": median["enqueue"],
        "cpu_us_per_op": median["cpu"],
        "ratio": median["neuron"] / median["cpu"],
        "extra_argument_us": median["three"] - median["two"],
        "view_us": median["view"] - median["plain"],
        "idle_round_trip_us": median["idle"],
        "large_ratio": max(large.values()),
    }
    print_table(
        [
            ("small operator, end to end", f"{result['us_per_op']:.2f} µs"),
            ("small operator, main thread", f"{result['main_thread_us']:.2f} µs"),
            ("small operator on the CPU", f"{result['cpu_us_per_op']:.2f} µs"),
            ("neuron / CPU", f"{result['ratio']:.2f}"),
            ("one more tensor argument", f"{result['extra_argument_us']:.2f} µs"),
            ("a transposed view as argument", f"{result['view_us']:.2f} µs"),
            ("round trip after 1 ms of idleness", f"{result['idle_round_trip_us']:.1f} µs"),
            *((f"addition of {size} MB, neuron / CPU", f"{ratio:.2f}") for size, ratio in large.items()),
        ]
    )
    print_result(result)


if __name__ == "__main__":
    main()
