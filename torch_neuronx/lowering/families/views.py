# SPDX-License-Identifier: Apache-2.0
"""Views as pure functions, and their `_copy` twins. In eager mode views share storage and do not come here."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from ...stablehlo import Builder, Value
from ..indexing import wrap_dim
from ..registry import lowers
from ..view_operand import read_view

aten = torch.ops.aten


@lowers(
    aten.alias.default,
    aten.alias_copy.default,
    aten.detach.default,
    aten.detach_copy.default,
    aten.lift.default,
    aten.lift_fresh.default,
    aten.lift_fresh_copy.default,
)
def same(b: Builder, x: Value) -> Value:
    return x


@lowers(
    aten.view.default,
    aten.view_copy.default,
    aten._reshape_copy.default,
    aten._unsafe_view.default,
    aten._reshape_alias.default,
    aten._reshape_alias_copy.default,
    aten.squeeze.default,
    aten.squeeze.dim,
    aten.squeeze.dims,
    aten.squeeze_copy.default,
    aten.squeeze_copy.dim,
    aten.squeeze_copy.dims,
    aten.unsqueeze.default,
    aten.unsqueeze_copy.default,
)
def reshape(b: Builder, x: Value, *_: object) -> Value:
    return b.reshape(x, b.out[0].shape)


@lowers(aten.permute.default, aten.permute_copy.default)
def permute(b: Builder, x: Value, dims: Sequence[int]) -> Value:
    return b.transpose(x, [wrap_dim(d, x.ndim) for d in dims])


@lowers(aten.transpose.int, aten.transpose_copy.int)
def transpose(b: Builder, x: Value, dim0: int, dim1: int) -> Value:
    if x.ndim == 0:
        return x
    order = list(range(x.ndim))
    dim0, dim1 = wrap_dim(dim0, x.ndim), wrap_dim(dim1, x.ndim)
    order[dim0], order[dim1] = order[dim1], order[dim0]
    return b.transpose(x, order)


@lowers(aten.t.default, aten.t_copy.default)
def t(b: Builder, x: Value) -> Value:
    return b.transpose(x, [1, 0]) if x.ndim == 2 else x


@lowers(aten.expand.default, aten.expand_copy.default)
def expand(b: Builder, x: Value, *_: object) -> Value:
    return b.broadcast_to(x, b.out[0].shape)


# -- parts -------------------------------------------------------------------------------------


def slice_bounds(size: int, start: int | None, end: int | None) -> tuple[int, int]:
    """Python's reading of start and end, as PyTorch clamps them."""
    start = 0 if start is None else start
    end = size if end is None else end
    start = min(max(start + size if start < 0 else start, 0), size)
    end = min(max(end + size if end < 0 else end, start), size)
    return start, end


@lowers(aten.slice.Tensor, aten.slice_copy.Tensor)
def slice_(b: Builder, x: Value, dim: int, start: int | None, end: int | None, step: int) -> Value:
    dim = wrap_dim(dim, x.ndim)
    start, end = slice_bounds(x.shape[dim], start, end)
    return b.slice_dim(x, dim, start, end, step)


@lowers(aten.narrow_copy.default)
def narrow(b: Builder, x: Value, dim: int, start: int, length: int) -> Value:
    dim = wrap_dim(dim, x.ndim)
    start = start + x.shape[dim] if start < 0 else start
    return b.slice_dim(x, dim, start, start + length)


@lowers(aten.select.int, aten.select_copy.int)
def select(b: Builder, x: Value, dim: int, index: int) -> Value:
    dim = wrap_dim(dim, x.ndim)
    index = index + x.shape[dim] if index < 0 else index
    return b.reshape(b.slice_dim(x, dim, index, index + 1), b.out[0].shape)


def _pieces(b: Builder, x: Value, dim: int) -> list[Value]:
    """Consecutive parts along `dim`, as long as the results."""
    dim = wrap_dim(dim, x.ndim)
    pieces, at = [], 0
    for out in b.out:
        pieces.append(b.slice_dim(x, dim, at, at + out.shape[dim]))
        at += out.shape[dim]
    return pieces


@lowers(
    aten.split.Tensor,
    aten.split_copy.Tensor,
    aten.split_with_sizes.default,
    aten.split_with_sizes_copy.default,
    aten.unsafe_split.Tensor,
    aten.unsafe_split_with_sizes.default,
)
def split(b: Builder, x: Value, _: object, dim: int) -> list[Value]:
    return _pieces(b, x, dim)


@lowers(aten.unbind.int, aten.unbind_copy.int)
def unbind(b: Builder, x: Value, dim: int) -> list[Value]:
    dim = wrap_dim(dim, x.ndim)
    return [b.reshape(b.slice_dim(x, dim, i, i + 1), out.shape) for i, out in enumerate(b.out)]


def diagonal_of(b: Builder, x: Value, offset: int, dim1: int, dim2: int) -> Value:
    """The diagonal as last dimension: elements one row and one column apart in the flattened matrix."""
    dim1, dim2 = wrap_dim(dim1, x.ndim), wrap_dim(dim2, x.ndim)
    x = b.transpose(x, [d for d in range(x.ndim) if d not in (dim1, dim2)] + [dim1, dim2])
    *batch, rows, columns = x.shape
    length = max(0, min(rows, columns - offset) if offset >= 0 else min(rows + offset, columns))
    if length == 0:
        return b.constant(0, x.dtype, (*batch, 0))
    start = offset if offset >= 0 else -offset * columns
    step = columns + 1
    flat = b.reshape(x, (*batch, rows * columns))
    return b.slice_dim(flat, len(batch), start, start + (length - 1) * step + 1, step)


@lowers(aten.diagonal.default, aten.diagonal_copy.default)
def diagonal(b: Builder, x: Value, offset: int, dim1: int, dim2: int) -> Value:
    return diagonal_of(b, x, offset, dim1, dim2)


@lowers(aten.unfold.default, aten.unfold_copy.default)
def unfold(b: Builder, x: Value, dim: int, size: int, step: int) -> Value:
    """Windows of `size` elements along `dim`, `step` apart; the place in the window is the last dimension."""
    shape = tuple(b.out[0].shape)
    if x.ndim == 0:
        return b.reshape(x, shape)
    dim = wrap_dim(dim, x.ndim)
    count = shape[dim]
    if math.prod(shape) == 0:
        return b.constant(0, x.dtype, shape)
    if size <= step:
        # Windows do not overlap: cut the dimension into steps and keep the head of each.
        length = (count - 1) * step + size
        x = b.slice_dim(x, dim, 0, length)
        widths = [count * step - length if d == dim else 0 for d in range(x.ndim)]
        x = b.pad(x, [0] * x.ndim, widths)
        x = b.reshape(x, (*x.shape[:dim], count, step, *x.shape[dim + 1 :]))
        windows = b.slice_dim(x, dim + 1, 0, size)
        order = [d for d in range(windows.ndim) if d != dim + 1] + [dim + 1]
        return b.transpose(windows, order)
    starts = b.multiply(b.iota((count,), 0), step)
    sizes = [size if d == dim else n for d, n in enumerate(x.shape)]
    # The window, dimension `dim` of a slice, becomes dimension dim + 1 of the gather's result.
    gathered = [*x.shape[:dim], count, size, *x.shape[dim + 1 :]]
    offset_dims = [d for d in range(len(gathered)) if d != dim]
    windows = b.gather(x, starts, gathered, offset_dims, [], [dim], 1, sizes)
    order = [d for d in range(windows.ndim) if d != dim + 1] + [dim + 1]
    return b.transpose(windows, order)


@lowers(aten.as_strided.default, aten.as_strided_copy.default)
def as_strided(b: Builder, x: Value, size: Sequence[int], stride: Sequence[int], offset: int | None) -> Value:
    """Of a contiguous tensor that begins its storage (`lower_graph` sees to it)."""
    flat = b.reshape(x, (x.numel,))
    offset = offset or 0
    needed = 1 + sum((n - 1) * s for n, s in zip(size, stride, strict=True)) if math.prod(size) else 0
    return read_view(b, b.slice_dim(flat, 0, offset, offset + needed), size, stride, None)


# -- another reading of the same bytes ------------------------------------------------------------


def _bytes_as(b: Builder, x: Value, dtype: torch.dtype) -> Value:
    """bitcast_convert where bool counts as a byte of 0 or 1."""
    if x.dtype == dtype:
        return x
    if x.dtype == torch.bool:
        return _bytes_as(b, b.convert(x, torch.uint8), dtype)
    if dtype == torch.bool:
        return b.convert(_bytes_as(b, x, torch.uint8), torch.bool)
    if x.dtype.is_complex:
        pair = b.concatenate([b.reshape(part, (*x.shape, 1)) for part in (b.real(x), b.imag(x))], x.ndim)
        return _bytes_as(b, b.reshape(pair, (*x.shape[:-1], x.shape[-1] * 2)), dtype)
    if dtype.is_complex:
        pair = _bytes_as(b, x, dtype.to_real())
        pair = b.reshape(pair, (*pair.shape[:-1], pair.shape[-1] // 2, 2))
        return _complex_of(b, pair)
    old, new = x.dtype.itemsize, dtype.itemsize
    if old == new:
        return b.bitcast_convert(x, dtype)
    if old > new:
        parts = b.bitcast_convert(x, dtype, (*x.shape, old // new))
        return b.reshape(parts, (*x.shape[:-1], x.shape[-1] * (old // new)))
    grouped = b.reshape(x, (*x.shape[:-1], x.shape[-1] * old // new, new // old))
    return b.bitcast_convert(grouped, dtype, grouped.shape[:-1])


def _complex_of(b: Builder, pair: Value) -> Value:
    last = pair.ndim - 1
    parts = [b.reshape(b.slice_dim(pair, last, i, i + 1), pair.shape[:-1]) for i in range(2)]
    return b.complex(*parts)


@lowers(aten.view.dtype, aten.view_copy.dtype)
def view_dtype(b: Builder, x: Value, dtype: torch.dtype) -> Value:
    if x.numel == 0:
        return b.constant(0, dtype, b.out[0].shape)
    flat = x if x.ndim else b.reshape(x, (1,))
    return b.reshape(_bytes_as(b, flat, dtype), b.out[0].shape)
