# SPDX-License-Identifier: Apache-2.0
"""Joining, repeating and reordering whole slices of tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from ...stablehlo import Builder, Value
from ..indexing import running, wrap_dim
from ..registry import DataDependentShape, lowers

aten = torch.ops.aten


@lowers(aten.cat.default)
def cat(b: Builder, tensors: Sequence[Value], dim: int) -> Value:
    out = b.out[0]
    # An empty 1-D tensor joins tensors of any rank, for old times' sake.
    parts = [b.convert(t, out.dtype) for t in tensors if t.ndim == out.dim()]
    dim = wrap_dim(dim, out.dim())
    parts = [t for t in parts if t.shape[dim]]
    return b.concatenate(parts, dim) if parts else b.constant(0, out.dtype, out.shape)


@lowers(aten.stack.default, aten._stack.default)
def stack(b: Builder, tensors: Sequence[Value], dim: int) -> Value:
    out = b.out[0]
    dim = wrap_dim(dim, out.dim())
    shape = [1 if d == dim else n for d, n in enumerate(out.shape)]
    return b.concatenate([b.reshape(b.convert(t, out.dtype), shape) for t in tensors], dim)


@lowers(aten.flip.default)
def flip(b: Builder, x: Value, dims: Sequence[int]) -> Value:
    return b.reverse(x, sorted({wrap_dim(d, x.ndim) for d in dims})) if x.ndim else x


@lowers(aten.roll.default)
def roll(b: Builder, x: Value, shifts: Sequence[int], dims: Sequence[int]) -> Value:
    if x.numel == 0:
        return x
    if not dims:
        flat = b.reshape(x, (x.numel,))
        return b.reshape(_roll(b, flat, shifts[0], 0), x.shape)
    for shift, dim in zip(shifts, dims, strict=True):
        x = _roll(b, x, shift, wrap_dim(dim, x.ndim))
    return x


def _roll(b: Builder, x: Value, shift: int, dim: int) -> Value:
    n = x.shape[dim]
    cut = n - shift % n
    return x if cut == n else b.concatenate([b.slice_dim(x, dim, cut, n), b.slice_dim(x, dim, 0, cut)], dim)


@lowers(aten.repeat.default)
def repeat(b: Builder, x: Value, repeats: Sequence[int]) -> Value:
    out = tuple(b.out[0].shape)
    if math.prod(out) == 0:
        return b.constant(0, x.dtype, out)
    sizes = (1,) * (len(repeats) - x.ndim) + x.shape
    x = b.reshape(x, sizes)
    wide = [n for pair in zip(repeats, sizes, strict=True) for n in pair]
    spread = b.broadcast_in_dim(x, wide, [2 * d + 1 for d in range(len(sizes))])
    return b.reshape(spread, out)


@lowers(aten.repeat_interleave.Tensor)
def repeat_interleave(b: Builder, repeats: Value, *, output_size: int | None) -> Value:
    """Row numbers, number i `repeats[i]` times."""
    if output_size is None:
        raise DataDependentShape("repeat_interleave without output_size: the length is the sum of the repeats")
    if output_size == 0:
        return b.constant(0, repeats.dtype, (0,))
    ends = running(b, repeats, 0, "sum")
    # The row of position p is the number of rows that end at or before p.
    marks = b.scatter(
        b.constant(0, repeats.dtype, (output_size,)),
        ends,
        b.constant(1, repeats.dtype, repeats.shape),
        lambda old, new: b.add(old, new),
        [],
        [0],
        [0],
        1,
    )
    return running(b, marks, 0, "sum")
