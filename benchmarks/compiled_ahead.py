# SPDX-License-Identifier: Apache-2.0
"""The first call of the FLUX.2 transformer in a new process: compiled ahead of time and loaded from a file, against
`torch.compile` with a warm cache. Both over a steady call; imports and the model are there before the clock starts."""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
from collections.abc import Callable
from typing import Any

import torch

from .flux_model import make_inputs, make_model
from .measure import print_table
from .peers import DTYPES, Build, Peer, main

MODULE, TOKENS, FILE = "benchmarks.compiled_ahead", 1024, "BENCHMARK_COMPILED_FUNCTION"


def build(case: str) -> Build:
    def workload(device: str, dtype: torch.dtype, compile: Callable[..., Any]) -> Callable[[], Any]:
        model, inputs = make_model(dtype).to(device), make_inputs(TOKENS, dtype, device)

        def forward(model: Any, **inputs: torch.Tensor) -> torch.Tensor:
            return model(**inputs, return_dict=False)[0]

        # What guards hold beside tensors are objects of this process, which a file cannot name.
        guards = {"guard_filter_fn": torch.compiler.keep_tensor_guards_unsafe}
        function = compile(forward, fullgraph=True, options=guards if case == "ahead" else None)
        loaded: list[Callable[..., Any]] = []

        def load() -> Callable[..., Any]:
            path = os.environ[FILE]
            if not os.path.exists(path):
                function.aot_compile(((model,), inputs)).save_compiled_function(path)
            with open(path, "rb") as file:
                return torch.compiler.load_compiled_function(file)

        @torch.no_grad()
        def call() -> torch.Tensor:
            if case == "plain":
                return function(model, **inputs)
            if not loaded:
                loaded.append(load())
            return loaded[0](model, **inputs)

        return call

    return workload


def overhead(dtype: str, case: str) -> float:
    """Seconds that the first call of the second process takes over a steady one."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {
            "TORCH_NEURONX_NEFF_CACHE_DIR": os.path.join(folder, "neff"),
            "TORCHINDUCTOR_CACHE_DIR": os.path.join(folder, "torch"),
            FILE: os.path.join(folder, "function"),
        }
        Peer(MODULE, "neuron", dtype, case, environment).close()
        second = Peer(MODULE, "neuron", dtype, case, environment)
        steady = statistics.median(second.ask("call_s") for _ in range(5))
        second.close()
        return second.first_call_s - steady


def report() -> None:
    result = {}
    for dtype in DTYPES:
        found = {f"{case}_overhead_s": float(f"{overhead(dtype, case):.3g}") for case in ("ahead", "plain")}
        print_table([(f"{dtype}: {name}", f"{value:.2f} s") for name, value in found.items()])
        result[dtype] = found
    print(json.dumps(result))


if __name__ == "__main__":
    if "--worker" in sys.argv:
        main(MODULE, build, ["ahead", "plain"])
    else:
        report()
