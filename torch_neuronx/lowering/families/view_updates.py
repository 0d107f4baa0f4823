# SPDX-License-Identifier: Apache-2.0
"""A tensor with one of its views replaced (`*_scatter`), and the gradients of views (`*_backward`)."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ...stablehlo import Builder, Value
from ..indexing import wrap_dim
from ..promotion import opmath
from ..registry import lowers
from ..view_operand import write_view
from .views import slice_bounds

aten = torch.ops.aten


def _along(dim: int, at: int, others: int, rank: int) -> list[int]:
    return [at if d == dim else others for d in range(rank)]


def replace_slice(b: Builder, x: Value, part: Value, dim: int, start: int, end: int, step: int) -> Value:
    """`x` with x[..., start:end:step, ...] replaced by `part`."""
    if part.numel == 0:
        return x
    if part.shape == x.shape:
        return part
    if step == 1:
        zero = b.constant(0, torch.int64)
        starts = [b.constant(start, torch.int64) if d == dim else zero for d in range(x.ndim)]
        return b.dynamic_update_slice(x, part, starts)
    place = b.iota(x.shape, dim)
    offset = b.subtract(place, start)
    hit = b.and_(b.compare(b.remainder(offset, step), 0, "EQ"), b.compare(offset, 0, "GE"))
    hit = b.and_(hit, b.compare(place, end, "LT"))
    return b.select(hit, _spread(b, part, x.shape, dim, start, step), x)


def _spread(b: Builder, part: Value, shape: Sequence[int], dim: int, start: int, step: int) -> Value:
    """Zeros of `shape` with `part` at start, start + step, … along `dim`."""
    n, rank = part.shape[dim], len(shape)
    high = shape[dim] - start - (1 + (n - 1) * step)
    low, high, between = (_along(dim, at, 0, rank) for at in (start, high, step - 1))
    return b.pad(part, low, high, 0, between)


@lowers(aten.slice_scatter.default)
def slice_scatter(b: Builder, x: Value, src: Value, dim: int, start: int | None, end: int | None, step: int) -> Value:
    dim = wrap_dim(dim, x.ndim)
    start, end = slice_bounds(x.shape[dim], start, end)
    shape = [-(-(end - start) // step) if d == dim else n for d, n in enumerate(x.shape)]
    return replace_slice(b, x, b.broadcast_to(b.convert(src, x.dtype), shape), dim, start, end, step)


@lowers(aten.select_scatter.default)
def select_scatter(b: Builder, x: Value, src: Value, dim: int, index: int) -> Value:
    dim = wrap_dim(dim, x.ndim)
    index = index % x.shape[dim]
    src = b.reshape(b.convert(src, x.dtype), _along_shape(x.shape, dim, 1))
    return replace_slice(b, x, src, dim, index, index + 1, 1)


def _along_shape(shape: Sequence[int], dim: int, size: int) -> list[int]:
    return [size if d == dim else n for d, n in enumerate(shape)]


@lowers(aten.slice_backward.default)
def slice_backward(b: Builder, grad: Value, sizes: Sequence[int], dim: int, start: int, end: int, step: int) -> Value:
    dim = wrap_dim(dim, len(sizes))
    if grad.numel == 0:
        return b.constant(0, grad.dtype, sizes)
    start, _ = slice_bounds(sizes[dim], start, end)
    return _spread(b, grad, sizes, dim, start, step)


@lowers(aten.select_backward.default)
def select_backward(b: Builder, grad: Value, sizes: Sequence[int], dim: int, index: int) -> Value:
    dim = wrap_dim(dim, len(sizes))
    grad = b.reshape(grad, _along_shape(sizes, dim, 1))
    return _spread(b, grad, sizes, dim, index % sizes[dim], 1)


def _diagonal_frame(
    b: Builder, part: Value, sizes: Sequence[int], offset: int, dim1: int, dim2: int
) -> tuple[Value, Value | None]:
    """Zeros of `sizes` with `part` on a diagonal, and where that diagonal is (None: nowhere)."""
    rank = len(sizes)
    dim1, dim2 = wrap_dim(dim1, rank), wrap_dim(dim2, rank)
    if part.numel == 0:
        return b.constant(0, part.dtype, sizes), None
    hit = b.compare(b.add(b.iota(sizes, dim1), offset), b.iota(sizes, dim2), "EQ")
    # The diagonal's elements laid along the dimension where it starts at 0, repeated along the other.
    along = dim1 if offset >= 0 else dim2
    pad = _along(part.ndim - 1, sizes[along] - part.shape[-1], 0, part.ndim)
    part = b.pad(part, [0] * part.ndim, pad)
    dims = [d for d in range(rank) if d not in (dim1, dim2)] + [along]
    order = sorted(range(len(dims)), key=lambda i: dims[i])
    spread = b.broadcast_in_dim(b.transpose(part, order), sizes, [dims[i] for i in order])
    return spread, hit


@lowers(aten.diagonal_scatter.default)
def diagonal_scatter(b: Builder, x: Value, src: Value, offset: int, dim1: int, dim2: int) -> Value:
    spread, hit = _diagonal_frame(b, b.convert(src, x.dtype), x.shape, offset, dim1, dim2)
    return x if hit is None else b.select(hit, spread, x)


@lowers(aten.diagonal_backward.default)
def diagonal_backward(b: Builder, grad: Value, sizes: Sequence[int], offset: int, dim1: int, dim2: int) -> Value:
    spread, hit = _diagonal_frame(b, grad, sizes, offset, dim1, dim2)
    return spread if hit is None else b.select(hit, spread, 0)


@lowers(aten.diag_embed.default)
def diag_embed(b: Builder, x: Value, offset: int, dim1: int, dim2: int) -> Value:
    return diagonal_backward(b, x, tuple(b.out[0].shape), offset, dim1, dim2)


@lowers(aten.as_strided_scatter.default)
def as_strided_scatter(
    b: Builder, x: Value, src: Value, size: Sequence[int], stride: Sequence[int], offset: int | None
) -> Value:
    """Of a contiguous tensor that begins its storage."""
    flat = b.reshape(x, (x.numel,))
    start = b.constant(offset or 0, torch.int64)
    src = b.broadcast_to(b.convert(src, x.dtype), size)
    return b.reshape(write_view(b, flat, src, size, stride, start), x.shape)


@lowers(aten.unfold_backward.default)
def unfold_backward(b: Builder, grad: Value, sizes: Sequence[int], dim: int, size: int, step: int) -> Value:
    """Sum of the windows an element was in: one shifted copy for every place in the window, or a scatter."""
    if grad.numel == 0:
        return b.constant(0, grad.dtype, sizes)
    if not sizes:
        return b.reshape(grad, ())
    dim = wrap_dim(dim, len(sizes))
    wide = b.convert(grad, opmath(grad.dtype))
    last = grad.ndim - 1
    if size <= 16:
        total = None
        for place in range(size):
            part = b.reshape(b.slice_dim(wide, last, place, place + 1), grad.shape[:-1])
            part = _spread(b, part, sizes, dim, place, step)
            total = part if total is None else b.add(total, part)
        return b.convert(total, grad.dtype)
    # One scattered window for every position along `dim`.
    updates = b.transpose(wide, [*range(dim + 1), last, *range(dim + 1, last)])
    starts = b.multiply(b.iota((grad.shape[dim],), 0), step)
    window = [d for d in range(updates.ndim) if d != dim]
    zeros = b.constant(0, wide.dtype, sizes)
    result = b.scatter(zeros, starts, updates, lambda old, new: b.add(old, new), window, [], [dim], 1)
    return b.convert(result, grad.dtype)
