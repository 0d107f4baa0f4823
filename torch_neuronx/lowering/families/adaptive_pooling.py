# SPDX-License-Identifier: Apache-2.0
"""Adaptive pooling: as many windows as results, of sizes that differ by at most two.

Window i of n over `size` elements runs from floor(i * size / n) to ceil((i + 1) * size / n).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

from ...stablehlo import Builder, Value
from ...stablehlo.structured import lowest
from ..promotion import opmath
from ..registry import lowers
from .pooling import larger, positions, scatter_to_positions

aten = torch.ops.aten


def _bounds(size: int, count: int) -> list[tuple[int, int]]:
    return [(i * size // count, -(-(i + 1) * size // count)) for i in range(count)]


def _pool(b: Builder, operands: Sequence[Value], dim: int, count: int, reduce: Callable) -> list[Value]:
    """Reduces `operands` over `count` windows of dimension `dim`; reduce(operands, dim) drops the dimension."""
    shape = operands[0].shape
    size = shape[dim]
    if size == count:
        return list(operands)
    if size % count == 0:
        split = (*shape[:dim], count, size // count, *shape[dim + 1 :])
        return reduce([b.reshape(v, split) for v in operands], dim + 1)
    columns = []
    for start, end in _bounds(size, count):
        column = reduce([b.slice_dim(v, dim, start, end) for v in operands], dim)
        columns.append([b.reshape(v, (*shape[:dim], 1, *shape[dim + 1 :])) for v in column])
    return [b.concatenate(parts, dim) for parts in zip(*columns, strict=True)]


def _window_lengths(b: Builder, x: Value, dim: int, size: int, count: int) -> Value:
    """Elements in each window, shaped to broadcast along `dim` of `x`."""
    lengths = [end - start for start, end in _bounds(size, count)]
    if len(set(lengths)) == 1:
        return b.constant(lengths[0], x.dtype)
    return b.reshape(b.constant_array(lengths, x.dtype), [count if d == dim else 1 for d in range(x.ndim)])


def _average(b: Builder, x: Value, output_size: Sequence[int]) -> Value:
    (out,) = b.out
    if x.numel == 0 or out.numel() == 0:
        return b.constant(math.nan, out.dtype, tuple(out.shape))
    first = x.ndim - len(output_size)
    x = b.convert(x, opmath(x.dtype))
    for dim in range(first, x.ndim):
        size, count = x.shape[dim], out.shape[dim]
        (x,) = _pool(b, [x], dim, count, lambda operands, d: [b.reduce(operands[0], [d], "add")])
        if size != count:
            x = b.divide(x, _window_lengths(b, x, dim, size, count))
    return b.convert(x, out.dtype)


lowers(aten._adaptive_avg_pool2d.default, aten._adaptive_avg_pool3d.default)(_average)
lowers(aten.adaptive_avg_pool1d.default, whole=True)(_average)


def _spread(b: Builder, grad: Value, dim: int, size: int) -> Value:
    """Every element gets the sum of the values of the windows that it is in."""
    count = grad.shape[dim]
    if count == size:
        return grad
    if size % count == 0:
        shape = (*grad.shape[: dim + 1], size // count, *grad.shape[dim + 1 :])
        spread = b.broadcast_in_dim(grad, shape, [d for d in range(grad.ndim + 1) if d != dim + 1])
        return b.reshape(spread, (*grad.shape[:dim], size, *grad.shape[dim + 1 :]))
    rows = [[float(start <= i < end) for i in range(size)] for start, end in _bounds(size, count)]
    members = b.constant_array([v for row in rows for v in row], grad.dtype, (count, size))
    spread = b.dot_general(grad, members, ([dim], [0]))
    order = [*range(dim), grad.ndim - 1, *range(dim, grad.ndim - 1)]
    return b.transpose(spread, order)


def _average_backward(b: Builder, grad: Value, x: Value, spatial: int) -> Value:
    (out,) = b.out
    if grad.numel == 0 or out.numel() == 0:
        return b.constant(0, out.dtype, tuple(out.shape))
    grad = b.convert(grad, opmath(grad.dtype))
    for dim in range(grad.ndim - spatial, grad.ndim):
        size, count = x.shape[dim], grad.shape[dim]
        if size != count:
            grad = _spread(b, b.divide(grad, _window_lengths(b, grad, dim, size, count)), dim, size)
    return b.convert(grad, out.dtype)


lowers(aten._adaptive_avg_pool2d_backward.default)(lambda b, grad, x: _average_backward(b, grad, x, 2))
lowers(aten._adaptive_avg_pool3d_backward.default)(lambda b, grad, x: _average_backward(b, grad, x, 3))


@lowers(aten.adaptive_max_pool2d.default, aten.adaptive_max_pool3d.default)
def adaptive_max_pool(b, x, output_size):
    values, indices = b.out
    if values.numel() == 0:
        return tuple(b.constant(0, meta.dtype, tuple(meta.shape)) for meta in b.out)
    position, behind = positions(b, x, len(output_size))
    initial = [b.constant(lowest(x.dtype), x.dtype), behind]

    def reduce(operands, dim):
        return b.reduce_with(operands, initial, [dim], lambda a, i, e, j: larger(b, a, i, e, j))

    pair = [x, position]
    for dim in range(x.ndim - len(output_size), x.ndim):
        pair = _pool(b, pair, dim, values.shape[dim], reduce)
    return pair[0], b.convert(pair[1], indices.dtype)


lowers(aten.adaptive_max_pool2d_backward.default)(lambda b, grad, x, at: scatter_to_positions(b, grad, at, 2))
lowers(aten.adaptive_max_pool3d_backward.default)(lambda b, grad, x, at: scatter_to_positions(b, grad, at, 3))
