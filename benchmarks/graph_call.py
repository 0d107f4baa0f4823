# SPDX-License-Identifier: Apache-2.0
"""What a call of a compiled graph costs beside its work.

us_per_call         our part of a call: from the list of inputs to the list of results of a graph of one addition,
                    the device's work included, behind the guards of Dynamo and the wrappers of AOTAutograd
us_per_input        what one more input of four numbers adds to that
us_per_large_input  what one adds that is too large (20 kB) to be passed together with others; not its work: four
                    numbers of it are read
device_us_per_large_input  how much of that the device takes: on the software NeuronCore, PJRT's execute alone
us_64_ops           a whole call of 64 small operators in a chain (64 x 64, f32), compiled, until the result is there
inductor_us_64_ops  the same function by Inductor on the CPU
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from .measure import interleaved, print_result, print_table

CALLS, ROUNDS = 500, 15
INPUTS = 100


def us(call: Callable[[], Any], finish: Callable[[], Any] = lambda: None) -> float:
    """Microseconds a call, one after the other, until the last has finished."""
    started = time.perf_counter()
    for _ in range(CALLS):
        call()
    finish()
    return (time.perf_counter() - started) / CALLS * 1e6


def us_waiting(call: Callable[[], Any], finish: Callable[[], Any]) -> float:
    """Microseconds a call that waits for its result."""
    started = time.perf_counter()
    for _ in range(CALLS):
        call()
        finish()
    return (time.perf_counter() - started) / CALLS * 1e6


def graph_of(function: Callable[..., Any], inputs: list[torch.Tensor]) -> Callable[[], Any]:
    """A call of the graph itself."""
    from torch.fx.experimental.proxy_tensor import make_fx

    from torch_neuronx.dynamo.compile import compile_graph
    from torch_neuronx.dynamo.origin import Origin

    gm = make_fx(function, tracing_mode="fake")(*inputs)
    graph = compile_graph(gm, inputs, role="inference", origin=Origin())
    return lambda: graph(list(inputs))


def chain(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The 64 operators of `eager_dispatch`."""
    for _ in range(16):
        x = torch.relu(x * a + b) - a
    return x


def total(*tensors: torch.Tensor) -> tuple[torch.Tensor]:
    result = tensors[0] + 1
    for tensor in tensors[1:]:
        result = result + tensor
    return (result,)


def total_of_heads(*tensors: torch.Tensor) -> tuple[torch.Tensor]:
    return total(*(tensor[:4] for tensor in tensors))


def device_us(call: Callable[[], Any]) -> float:
    """Microseconds of device time a call."""
    begin, end = (torch.neuron.Event(enable_timing=True) for _ in range(2))  # type: ignore[attr-defined]
    begin.record()
    for _ in range(CALLS):
        call()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / CALLS * 1e3


def main() -> None:
    device = torch.device("neuron")
    # Four numbers each, so that the sum itself costs next to nothing.
    tensors = [torch.ones(4, device=device) for _ in range(INPUTS)]
    large = [torch.ones(5000, device=device) for _ in range(INPUTS)]
    calls = {
        "one": graph_of(total, tensors[:1]),
        "many": graph_of(total, tensors),
        "one large": graph_of(total_of_heads, large[:1]),
        "many large": graph_of(total_of_heads, large),
    }
    neuron = torch.compile(chain, backend="neuron", fullgraph=True, dynamic=False)
    inductor = torch.compile(chain, backend="inductor", fullgraph=True, dynamic=False)
    on_cpu = [torch.rand(64, 64) for _ in range(3)]
    on_device = [tensor.to(device) for tensor in on_cpu]
    wait = torch.neuron.synchronize  # type: ignore[attr-defined]
    with torch.no_grad():
        for call in calls.values():
            call()
        neuron(*on_device), inductor(*on_cpu)
        times = interleaved(
            ROUNDS,
            {
                **{name: lambda call=call: us(call, wait) for name, call in calls.items()},
                **{f"device, {name}": lambda call=call: device_us(call) for name, call in calls.items()},
                "neuron": lambda: us_waiting(lambda: neuron(*on_device), wait),
                "inductor": lambda: us(lambda: inductor(*on_cpu)),
            },
        )

    def per_input(kind: str) -> float:
        return (times[kind.replace("*", "many")] - times[kind.replace("*", "one")]) / (INPUTS - 1)

    result = {
        "us_per_call": times["one"],
        "us_per_input": per_input("*"),
        "us_per_large_input": per_input("* large"),
        "device_us_per_large_input": per_input("device, * large"),
        "us_64_ops": times["neuron"],
        "inductor_us_64_ops": times["inductor"],
    }
    print_table([(name, f"{value:.2f} us") for name, value in result.items()])
    print_result(result)


if __name__ == "__main__":
    main()
