# SPDX-License-Identifier: Apache-2.0
"""Largest and smallest elements and where they are.

NaN is larger than everything and smaller than everything; of equal elements the first counts.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ...stablehlo import Builder, Value
from ..indexing import wrap_dim
from ..registry import lowers
from .reductions import Dims, reduced_dims, shaped

aten = torch.ops.aten


def extreme(b: Builder, x: Value, dims: Sequence[int], kind: str) -> tuple[Value, Value]:
    """The extreme of `x` with kept dimensions, and which elements count as that extreme."""
    found = b.reduce(x, dims, kind, keepdim=True)
    hit = b.compare(x, found, "EQ")
    # When there is a NaN, `found` is NaN and equals nothing.
    return found, b.or_(hit, b.is_nan(x)) if x.dtype.is_floating_point else hit


def first_index(b: Builder, hit: Value, dim: int) -> Value:
    """Index of the first True along `dim` (kept with size 1), as int64."""
    size = hit.shape[dim]
    # A float minimum vectorizes; a float32 counts exactly up to 2^24.
    dtype = torch.float32 if size <= 2**24 else torch.int32 if size < 2**31 else torch.int64
    position = b.iota(hit.shape, dim, dtype)
    return b.convert(b.reduce(b.select(hit, position, size), [dim], "minimum", keepdim=True), torch.int64)


def _with_indices(b: Builder, x: Value, dim: int, kind: str) -> tuple[Value, Value]:
    if x.ndim == 0:
        return x, b.constant(0, torch.int64)
    found, hit = extreme(b, x, [dim], kind)
    return found, first_index(b, hit, dim)


def _family(best: str, kind: str) -> None:
    pair, by_dim, index = getattr(aten, best), getattr(aten, "a" + best), getattr(aten, "arg" + best)

    @lowers(pair.default, by_dim.default)
    def value(b: Builder, x: Value, dim: Dims = None, keepdim: bool = False) -> Value:
        return shaped(b, b.reduce(x, reduced_dims(dim, x.ndim), kind))

    @lowers(pair.dim)
    def value_and_index(b: Builder, x: Value, dim: int, keepdim: bool) -> tuple[Value, Value]:
        found, position = _with_indices(b, x, wrap_dim(dim, x.ndim), kind)
        return shaped(b, found), shaped(b, position, 1)

    @lowers(index.default)
    def only_index(b: Builder, x: Value, dim: int | None, keepdim: bool) -> Value:
        if dim is None:
            x, dim = b.reshape(x, [x.numel]), 0
        return shaped(b, _with_indices(b, x, wrap_dim(dim, x.ndim), kind)[1])


_family("max", "maximum")
_family("min", "minimum")


@lowers(aten.aminmax.default)
def aminmax(b: Builder, x: Value, *, dim: int | None, keepdim: bool) -> tuple[Value, Value]:
    dims = reduced_dims(dim, x.ndim)
    return shaped(b, b.reduce(x, dims, "minimum")), shaped(b, b.reduce(x, dims, "maximum"), 1)
