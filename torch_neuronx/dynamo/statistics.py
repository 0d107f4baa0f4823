# SPDX-License-Identifier: Apache-2.0
"""What the backend has done so far: for `get_dynamo_metrics`, for people who ask why it took so long."""

from __future__ import annotations

import threading
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from . import metric_tables

if TYPE_CHECKING:
    from ..compiler import CompiledNeff
    from .compile import CompiledGraph

_mutex = threading.Lock()
_counts: dict[str, int] = defaultdict(int)
_seconds: dict[str, float] = defaultdict(float)
_graphs: list[dict[str, Any]] = []
_model_name = ""


def set_model_name(name: str) -> None:
    """Names what is compiled from now on: in messages, in `neuron-cache ls` and in the directories of artifacts."""
    global _model_name
    _model_name = str(name)


def get_model_name() -> str:
    """The name last given to `set_model_name`; empty at first."""
    return _model_name


def record_graph(graph: CompiledGraph, neff: CompiledNeff | None, lowering_seconds: float, wait_seconds: float) -> None:
    """A program of `graph` is ready; its first call has waited `wait_seconds` for it."""
    compile_seconds = neff.compile_seconds if neff else 0.0
    row = {
        "model": graph.model_name,
        "graph": graph.name,
        "role": graph.role,
        "line": graph.origin.line,
        "source": "index" if not lowering_seconds else "compiler" if compile_seconds else "cache",
        "lowering_seconds": lowering_seconds,
        "compile_seconds": compile_seconds,
        "wait_seconds": wait_seconds,
        "neff": neff.key if neff else "",
        "neff_bytes": len(neff.data) if neff else 0,
    }
    with _mutex:
        _counts["graphs"] += 1
        _counts["graphs_lowered" if lowering_seconds else "graphs_from_index"] += 1
        _seconds["lowering_seconds"] += lowering_seconds
        _seconds["compile_seconds"] += compile_seconds
        _seconds["wait_seconds"] += wait_seconds
        _graphs.append(row)
    metric_tables.append("graph_stats", row)


def get_dynamo_metrics() -> dict[str, Any]:
    """What torch.compile(backend="neuron") has done in this process since `reset_dynamo_metrics`.

    graphs: programs that calls have waited for; graphs_lowered and graphs_from_index: how they came about;
    lowering_seconds, compile_seconds, wait_seconds: time in lowering, in the compiler, and in first calls that
    waited for a compile or a load; per_graph: a dict for each, with its model name, name, role, the line of its
    function, the source of its program ("compiler", "cache" or "index"), its seconds, and key and size of its NEFF.
    """
    with _mutex:
        return {
            "graphs": _counts["graphs"],
            "graphs_lowered": _counts["graphs_lowered"],
            "graphs_from_index": _counts["graphs_from_index"],
            "lowering_seconds": _seconds["lowering_seconds"],
            "compile_seconds": _seconds["compile_seconds"],
            "wait_seconds": _seconds["wait_seconds"],
            "per_graph": [dict(graph) for graph in _graphs],
        }


def reset_dynamo_metrics() -> None:
    """Sets all of it to zero."""
    with _mutex:
        _counts.clear()
        _seconds.clear()
        _graphs.clear()
