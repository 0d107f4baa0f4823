# SPDX-License-Identifier: Apache-2.0
"""Tensors saved for the backward pass that nobody reads after it: their memory serves for its temporaries.

Such a program yields them as further results, written in place and undefined. AOTAutograd says which they are, and
refuses `retain_graph=True` while there are any.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from torch._guards import TracingContext

from ..compiler import current
from .outline import Outline
from .program import InputLayout

# Bytes from which on a tensor's memory is worth a result of its own.
_SMALLEST = 1 << 20


def donated_inputs(role: str, outline: Outline) -> list[int]:
    """Inputs of the graph, by number, whose memory the program may overwrite. Only the software NeuronCore takes its
    temporaries from there."""
    context = TracingContext.try_get()
    positions = getattr(context.fw_metadata if context else None, "bw_donated_idxs", None)
    if role != "backward" or not positions or not current().software:
        return []
    tensors = [outline.placeholders[position].meta["val"] for position in outline.inputs]
    owners = Counter(_memory(tensor) for tensor in tensors)
    return [
        index
        for index, (position, tensor) in enumerate(zip(outline.inputs, tensors, strict=True))
        if position in positions and owners[_memory(tensor)] == 1 and tensor.device.type != "cpu"
    ]


def undefined_outputs(donated: Sequence[int], layouts: Sequence[InputLayout]) -> list[int]:
    """Those of `donated` that are large, and that a program reads and writes as a whole."""
    return [
        index
        for index in donated
        if layouts[index].is_whole and layouts[index].window * layouts[index].dtype.itemsize >= _SMALLEST
    ]


def _memory(tensor: Any) -> int:
    return tensor.untyped_storage()._cdata
