# SPDX-License-Identifier: Apache-2.0
"""Programs that serve short 1-D operands of every length (csrc/eager/length_class.h says which calls these are).

Such a program takes windows of `lanes` elements of which the call's length is meaningful, and yields windows. What the
other lanes hold is anything: a program must neither fail on it nor let it into the meaningful ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..lowering.registry import Rule
from ..stablehlo import Builder, Value
from .variants import Variant

aten = torch.ops.aten


def lengths_of(variant: Variant, rule: Rule) -> str:
    """How programs of an overload depend on the lengths of short operands: exact, shared or each."""
    # In place and out=, lanes beyond the length are other tensors' memory.
    if variant.mutates or rule.whole:
        return "exact"
    if variant.overload is aten.cat.default:
        return "each"
    tags = variant.overload.tags
    return "shared" if torch.Tag.pointwise in tags and torch.Tag.nondeterministic_seeded not in tags else "exact"


def padded(value: Any, lanes: int) -> Any:
    """An argument with its 1-D tensors replaced by meta tensors of all lanes."""
    if isinstance(value, list):
        return [padded(v, lanes) for v in value]
    if isinstance(value, torch.Tensor) and value.ndim == 1:
        return torch.empty(lanes, dtype=value.dtype, device="meta")
    return value


def join(b: Builder, parts: Sequence[tuple[Value, Value]], dtype: torch.dtype) -> Value:
    """The first `length` elements of each window, one behind the other, as a window of `dtype`.

    parts: windows, 1-D and all of the same shape, which holds the sum of the lengths; and these, 0-dim.
    """
    first, end = parts[0]
    (lanes,) = first.shape
    # Every window is written whole, and its rest overwritten by the next: that takes room for one more.
    joined = b.pad(b.convert(first, dtype), [0], [lanes])
    for window, length in parts[1:]:
        joined = b.dynamic_update_slice(joined, b.convert(window, dtype), [end])
        end = b.add(end, length)
    return b.slice_dim(joined, 0, 0, lanes)
