# SPDX-License-Identifier: Apache-2.0
"""How a graph is launched, as a record that JSON can hold: enough to call it again without tracing it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from . import host_updates
from .outline import Outline, Output, Return
from .program import InputLayout


class Plan(NamedTuple):
    """fingerprint: of the graph, for `layouts`. donated: inputs whose memory the program may overwrite.
    The outline has no nodes."""

    outline: Outline
    layouts: list[InputLayout]
    donated: list[int]
    operators: list[str]
    fingerprint: bytes


def to_record(plan: Plan) -> dict[str, Any] | None:
    """What JSON can hold of it; None for a graph that holds a collective, or returns what has no such form."""
    outline = plan.outline
    updates = outline.host_updates and host_updates.to_record(outline.host_updates)
    if outline.is_awaited or (outline.host_updates is not None and updates is None):
        return None
    if not all(isinstance(value, (bool, int, float)) for value in outline.values_returned.values()):
        return None
    return {
        "argument_count": outline.argument_count,
        "inputs": outline.inputs,
        "values": list(outline.values_returned.items()),
        "outputs": [
            [*_layout(output.sizes, output.strides, output.dtype), output.target] for output in outline.outputs
        ],
        "returns": [None if returned is None else list(returned) for returned in outline.returns],
        "fixed": sorted(outline.fixed_inputs),
        "host_inputs": outline.host_inputs,
        "host_returns": outline.host_returns,
        "host_updates": updates,
        "layouts": [
            [*_layout(layout.sizes, layout.strides, layout.dtype), layout.scalar, layout.window, layout.has_delta]
            for layout in plan.layouts
        ],
        "donated": plan.donated,
        "operators": plan.operators,
        "graph": plan.fingerprint.hex(),
    }


def from_record(record: dict[str, Any]) -> Plan:
    layouts = [
        InputLayout(_dtype(dtype), tuple(sizes), tuple(strides), scalar, window, has_delta)
        for sizes, strides, dtype, scalar, window, has_delta in record["layouts"]
    ]
    outline = Outline(
        placeholders=[],
        argument_count=record["argument_count"],
        inputs=record["inputs"],
        outputs=[
            Output(None, tuple(sizes), tuple(strides), _dtype(dtype), target)
            for sizes, strides, dtype, target in record["outputs"]
        ],
        returns=[None if returned is None else _return(*returned) for returned in record["returns"]],
        values_returned=dict(record["values"]),
        fixed_inputs=frozenset(record["fixed"]),
        host_inputs=record["host_inputs"],
        host_returns=record["host_returns"],
        host_updates=record["host_updates"] and host_updates.from_record(record["host_updates"]),
        is_awaited=False,
    )
    return Plan(outline, layouts, record["donated"], record["operators"], bytes.fromhex(record["graph"]))


def _layout(sizes: Sequence[int], strides: Sequence[int], dtype: torch.dtype) -> list[Any]:
    return [list(sizes), list(strides), str(dtype).removeprefix("torch.")]


def _dtype(name: str) -> torch.dtype:
    return getattr(torch, name)


def _return(source: str, number: int, sizes: list[int] | None, strides: list[int] | None, offset: int) -> Return:
    if sizes is None or strides is None:
        return Return(source, number)
    return Return(source, number, tuple(sizes), tuple(strides), offset)
