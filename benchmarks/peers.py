# SPDX-License-Identifier: Apache-2.0
"""One workload, by every way to run it on this machine: processes of the same kind, timed in turns.

A workload is a function `build(device, dtype, compile)` that returns the call to time. `compile` wraps what is to be
compiled: torch.compile with the peer's backend, or nothing. Every peer runs in a process of its own with the same
number of threads; the parent lets them take turns, so that whatever slows the machine slows all of them.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch

from .measure import peak_bytes, print_table

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}
Build = Callable[[str, torch.dtype, Callable[..., Any]], Callable[[], Any]]

# peer -> device and torch.compile's backend; None: eager
PEERS: dict[str, tuple[str, str | None]] = {
    "neuron": ("neuron", "neuron"),
    "eager": ("cpu", None),
    "inductor": ("cpu", "inductor"),
    "openvino": ("cpu", "openvino"),
}


# What is imported before the clock runs: imports are not part of the first call.
_IMPORTS = {
    "neuron": ("torch_neuronx.dynamo", "torch_neuronx.lowering.families"),
    "inductor": ("torch._inductor.compile_fx",),
    "openvino": ("openvino.torch",),
}


def available_peers() -> list[str]:
    return [name for name in PEERS if name != "openvino" or importlib.util.find_spec("openvino") is not None]


class Peer:
    """A process that has built the workload and waits for orders."""

    def __init__(self, module: str, peer: str, dtype: str, case: str, environment: dict[str, str]):
        self.name = peer
        self.process = subprocess.Popen(
            [sys.executable, "-m", module, "--worker", peer, dtype, case],
            env={**os.environ, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE if peer == "openvino" else None,
            text=True,
        )
        self.first_call_s = self._answer()["first_call_s"]

    def _answer(self) -> dict[str, float]:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                return json.loads(line)
        raise RuntimeError(f"{self.name}: the process ended with status {self.process.wait()}")

    def ask(self, order: str) -> float:
        assert self.process.stdin is not None
        self.process.stdin.write(order + "\n")
        self.process.stdin.flush()
        return self._answer()[order]

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def _work(build: Callable[[str], Build], peer: str, dtype: str, case: str) -> None:
    """The child: builds, calls once, and obeys orders from standard input."""
    device, backend = PEERS[peer]
    for name in _IMPORTS.get(peer, ()):
        importlib.import_module(name)

    def compile(function: Any, **options: Any) -> Any:
        if backend is None:
            return function
        return torch.compile(function, backend=backend, dynamic=False, **options)

    call = build(case)(device, DTYPES[dtype], compile)
    if device == "neuron":
        torch.neuron.synchronize()  # type: ignore[attr-defined]  # what the build has queued is no part of a call

    def timed() -> float:
        started = time.perf_counter()
        call()
        if device == "neuron":
            torch.neuron.synchronize()  # type: ignore[attr-defined]
        return time.perf_counter() - started

    print(json.dumps({"first_call_s": timed()}), flush=True)
    for line in sys.stdin:
        order = line.strip()
        if order == "call_s":
            answer = timed()
        else:
            answer = float(peak_bytes())
        print(json.dumps({order: answer}), flush=True)


def compare(module: str, dtype: str, case: str, rounds: int, peers: list[str]) -> dict[str, Any]:
    """Times the workload by every peer.

    Returns steady_ratio (neuron's time / the best peer's), first_call_ratio (/ Inductor's), warm_first_call_s (a new
    process that finds neuron's cache filled), warm_overhead_s (that, less a steady call of the same process: what the
    first call takes beyond its work; imports are over when the clock starts), peak_ratio (memory / Inductor's),
    best_peer, and the times themselves.
    """
    with tempfile.TemporaryDirectory() as folder:
        environment = {
            "TORCH_NEURONX_NEFF_CACHE_DIR": os.path.join(folder, "neff"),
            "TORCHINDUCTOR_CACHE_DIR": os.path.join(folder, "inductor"),
        }
        started = []
        for peer in peers:
            try:
                started.append(Peer(module, peer, dtype, case, environment))
            except RuntimeError as error:
                if peer != "openvino":
                    raise
                print(f"note: {error}", file=sys.stderr)
        samples: dict[str, list[float]] = {peer.name: [] for peer in started}
        for peer in started:
            peer.ask("call_s")
        for _ in range(rounds):
            for peer in started:
                samples[peer.name].append(peer.ask("call_s"))
        peak = {peer.name: peer.ask("peak") for peer in started}
        first = {peer.name: peer.first_call_s for peer in started}
        for peer in started:
            peer.close()
        warm = Peer(module, "neuron", dtype, case, environment)
        warm_first = warm.first_call_s
        warm_overhead = warm_first - statistics.median(warm.ask("call_s") for _ in range(3))
        warm.close()
    steady = {name: statistics.median(values) for name, values in samples.items()}
    best = min((name for name in steady if name != "neuron"), key=lambda name: steady[name])
    result: dict[str, Any] = {
        "steady_ratio": steady["neuron"] / steady[best],
        "warm_first_call_s": warm_first,
        "warm_overhead_s": warm_overhead,
        "best_peer": best,
    }
    if "inductor" in steady:
        result["first_call_ratio"] = first["neuron"] / first["inductor"]
        result["peak_ratio"] = peak["neuron"] / peak["inductor"]
    title = f"{dtype} {case}".strip()
    print_table(
        [
            (f"{title}: {name}", f"{steady[name]:.4f} s  first {first[name]:.2f} s  peak {peak[name] / 2**20:.0f} MB")
            for name in steady
        ]
        + [
            (
                f"{title}: ratio to {best}",
                f"{result['steady_ratio']:.3f}  warm first call {warm_first:.2f} s, "
                f"{warm_overhead:.2f} s more than a steady one",
            )
        ]
    )
    return result


def main(module: str, build: Callable[[str], Build], cases: list[str], rounds: int = 7) -> None:
    """Runs the benchmark, or one of its children. build: from the name of a case to its workload; the first case
    is the one that the last line reports without a name."""
    parser = argparse.ArgumentParser(description=f"{module}: compiled on neuron against the peers on the CPU")
    parser.add_argument("--worker", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--dtypes", nargs="+", default=list(DTYPES), choices=DTYPES)
    parser.add_argument("--cases", nargs="+", default=cases, choices=cases)
    parser.add_argument("--peers", nargs="+", default=available_peers(), choices=PEERS)
    parser.add_argument("--rounds", type=int, default=rounds)
    options = parser.parse_args()
    if options.worker:
        _work(build, *options.worker)
        return
    if "neuron" not in options.peers or len(set(options.peers)) < 2:
        parser.error("--peers: neuron is compared with at least one other")
    result: dict[str, Any] = {}
    for dtype in options.dtypes:
        for case in options.cases:
            measured = compare(module, dtype, case, options.rounds, options.peers)
            measured = {k: v if isinstance(v, str) else float(f"{v:.4g}") for k, v in measured.items()}
            if case == cases[0]:
                result.setdefault(dtype, {}).update(measured)
            else:
                result.setdefault(dtype, {})[case] = measured
    print(json.dumps(result))
