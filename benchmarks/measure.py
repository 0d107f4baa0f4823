# SPDX-License-Identifier: Apache-2.0
"""Timing in interleaved blocks, child processes, and printing."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any


def interleaved(rounds: int, cases: Mapping[str, Callable[[], float]]) -> dict[str, float]:
    """Runs every case once a round, and returns the median of what each returned.

    Whatever slows the machine for a while slows all cases alike.
    """
    samples: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(rounds):
        for name, case in cases.items():
            samples[name].append(case())
    return {name: statistics.median(values) for name, values in samples.items()}


def seconds(function: Callable[[], Any]) -> float:
    """Wall time of one call."""
    started = time.perf_counter()
    function()
    return time.perf_counter() - started


def python(*arguments: str, environment: Mapping[str, str] | None = None) -> str:
    """What `python arguments` prints. Raises RuntimeError with its error output when it fails."""
    process = subprocess.run(
        [sys.executable, *arguments], env={**os.environ, **(environment or {})}, capture_output=True, text=True
    )
    if process.returncode != 0:
        raise RuntimeError(f"python {' '.join(arguments)} failed:\n{process.stderr[-4000:]}")
    return process.stdout


def child(module: str, *arguments: str, environment: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The JSON object that `python -m module arguments` prints as its last line."""
    return json.loads(python("-m", module, *arguments, environment=environment).strip().splitlines()[-1])


def peak_bytes() -> int:
    """The most memory that this process has had. Not ru_maxrss: that begins with the memory of the parent, from
    before it became this program."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024


def print_table(rows: list[tuple[str, str]]) -> None:
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        print(f"{name:<{width}}  {value}")


def print_result(result: Mapping[str, float]) -> None:
    """The last line: one JSON object, numbers to four significant digits."""
    print(json.dumps({name: float(f"{value:.4g}") for name, value in result.items()}))
