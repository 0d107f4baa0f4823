# SPDX-License-Identifier: Apache-2.0
"""Counters and durations of the package.

Counters always count. Metrics (a sample per event, in seconds) are kept only while enabled.
"""

from __future__ import annotations

import statistics
import threading
from collections import defaultdict, deque

from . import environment

CACHE_COUNTERS = (
    "CompilationCache.InMemoryHits",
    "CompilationCache.InMemoryMisses",
    "CompilationCache.PersistentHits",
    "CompilationCache.PersistentMisses",
    "CompilationCache.TotalCompilations",
    "CompilationCache.Evictions",
)

# Samples kept for each metric; older ones only count.
_WINDOW = 10_000

_lock = threading.Lock()
_counters: dict[str, int] = dict.fromkeys(CACHE_COUNTERS, 0)
_samples: dict[str, deque[float]] = defaultdict(lambda: deque(maxlen=_WINDOW))
_totals: dict[str, tuple[int, float]] = {}
_enabled: bool | None = None


def is_enabled() -> bool:
    """Whether durations are recorded."""
    global _enabled
    if _enabled is None:
        _enabled = environment.get("TORCH_NEURONX_METRICS_ENABLED")
    return _enabled


def set_enabled(enabled: bool) -> None:
    global _enabled
    _enabled = bool(enabled)


def increment(name: str, by: int = 1) -> None:
    """Adds to counter `name`."""
    with _lock:
        _counters[name] = _counters.get(name, 0) + by


def record(name: str, seconds: float) -> None:
    """Adds one sample to metric `name`, if metrics are enabled."""
    if not is_enabled():
        return
    with _lock:
        count, total = _totals.get(name, (0, 0.0))
        _totals[name] = (count + 1, total + seconds)
        _samples[name].append(seconds)


def get_counter_names() -> list[str]:
    with _lock:
        return list(_counters)


def get_counter_value(name: str) -> int | None:
    """The value of a counter; None when there is no such counter."""
    with _lock:
        return _counters.get(name)


def get_metric_names() -> list[str]:
    with _lock:
        return list(_totals)


def get_metric_data(name: str) -> tuple[int, float, list[float]] | None:
    """(number of samples, their sum in seconds, the latest samples); None when there is no such metric."""
    with _lock:
        if name not in _totals:
            return None
        return (*_totals[name], list(_samples[name]))


def report() -> str:
    """Counters and metrics for people, one a line."""
    lines = []
    for name in get_counter_names():
        lines.append(f"Counter {name}: {get_counter_value(name)}")
    for name in get_metric_names():
        data = get_metric_data(name)
        if data is not None:
            count, total, samples = data
            lines.append(
                f"Metric {name}: {count} samples, {total:.3f} s, median {statistics.median(samples) * 1e3:.2f} ms"
            )
    return "\n".join(lines)


def clear_all() -> None:
    """Sets the counters to zero and forgets the metrics."""
    with _lock:
        _counters.clear()
        _counters.update(dict.fromkeys(CACHE_COUNTERS, 0))
        _samples.clear()
        _totals.clear()
