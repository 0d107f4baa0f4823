# SPDX-License-Identifier: Apache-2.0
"""Pairwise p-norm distances."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from ...stablehlo import Builder, Value
from ..indexing import take_rows
from ..registry import lowers
from .reductions import shaped
from .statistics import vector_norm

aten = torch.ops.aten

# at::cdist's compute_mode, and its bound for deciding by itself.
_NEVER_MATMUL = 2
_ALWAYS_MATMUL = 1
_MATMUL_ROWS = 25


def _differences(b: Builder, x: Value, y: Value) -> Value:
    """(…, P, M) and (…, R, M) -> (…, P, R, M)"""
    lead = torch.broadcast_shapes(x.shape[:-2], y.shape[:-2])
    shape = [*lead, x.shape[-2], y.shape[-2], x.shape[-1]]
    x = b.reshape(x, [*x.shape[:-1], 1, x.shape[-1]])
    y = b.reshape(y, [*y.shape[:-2], 1, *y.shape[-2:]])
    return b.subtract(b.broadcast_to(x, shape), b.broadcast_to(y, shape))


def _euclidean(b: Builder, x: Value, y: Value) -> Value:
    """sqrt(|x|^2 + |y|^2 - 2 x y), with the matrix product doing the work."""
    lead = torch.broadcast_shapes(x.shape[:-2], y.shape[:-2])
    x, y = (b.broadcast_to(v, [*lead, *v.shape[-2:]]) for v in (x, y))
    last, batch = x.ndim - 1, list(range(x.ndim - 2))
    shape = [*lead, x.shape[-2], y.shape[-2]]
    product = b.dot_general(x, y, ([last], [last]), (batch, batch))
    square_x, square_y = (b.reduce(b.multiply(v, v), [last], "add") for v in (x, y))
    squares = b.add(
        b.broadcast_in_dim(square_x, shape, [*batch, last - 1]), b.broadcast_in_dim(square_y, shape, [*batch, last])
    )
    return b.sqrt(b.maximum(b.subtract(squares, b.multiply(product, 2)), 0))


@lowers(aten._euclidean_dist.default)
def euclidean_dist(b: Builder, x: Value, y: Value) -> Value:
    return shaped(b, _euclidean(b, x, y))


@lowers(aten._cdist_forward.default, static=("p",))
def cdist(b: Builder, x: Value, y: Value, p: float, compute_mode: int | None) -> Value:
    by_size = not compute_mode and (x.shape[-2] > _MATMUL_ROWS or y.shape[-2] > _MATMUL_ROWS)
    if p == 2 and compute_mode != _NEVER_MATMUL and (compute_mode == _ALWAYS_MATMUL or by_size):
        return shaped(b, _euclidean(b, x, y))
    if x.shape[-1] == 0:
        return b.constant(0, x.dtype, b.out[0].shape)
    difference = _differences(b, x, y)
    return shaped(b, vector_norm(b, difference, p, [difference.ndim - 1]))


def _norm_gradient(b: Builder, grad: Value, difference: Value, norm: Value, p: float) -> Value:
    """Of |difference|_p over its last dimension; `grad` and `norm` have that with size 1. Zero where the norm is."""
    sign, magnitude = b.sign(difference), b.abs(difference)
    if p == 1:
        return b.multiply(grad, sign)
    if math.isinf(p):
        # Every element that attains the maximum takes part.
        return b.select(b.compare(magnitude, norm, "EQ"), b.multiply(grad, sign), 0)
    if p == 2:
        gradient = b.divide(b.multiply(grad, difference), norm)
    else:
        power = b.multiply(sign, b.power(magnitude, p - 1))
        gradient = b.divide(b.multiply(grad, power), b.power(norm, p - 1))
    zero = b.or_(b.compare(b.broadcast_to(norm, difference.shape), 0, "EQ"), b.compare(difference, 0, "EQ"))
    return b.select(zero, 0, gradient)


@lowers(aten._cdist_backward.default, static=("p",))
def cdist_backward(b: Builder, grad: Value, x: Value, y: Value, p: float, distance: Value) -> Value:
    if p == 0 or grad.numel == 0 or x.numel == 0:
        return b.constant(0, x.dtype, b.out[0].shape)
    difference = _differences(b, x, y)
    grad, distance = (b.reshape(v, [*v.shape, 1]) for v in (grad, distance))
    gradient = _norm_gradient(b, grad, difference, distance, p)
    return shaped(b, b.reduce(gradient, [difference.ndim - 2], "add"))


# -- all pairs of one set ----------------------------------------------------------------------------


def _pairs(b: Builder, n: int) -> tuple[Value, Value]:
    """Row and column of the k-th entry above the diagonal of an n by n matrix, row by row."""
    count = n * (n - 1) // 2
    k = b.iota([count], 0, torch.int32)
    # Row i begins at i * (2n - i - 1) / 2: solved for i in float64, then corrected for rounding.
    half = n - 0.5
    root = b.sqrt(b.subtract(half * half, b.multiply(b.convert(k, torch.float64), 2.0)))
    row = b.convert(b.floor(b.subtract(half, root)), torch.int32)

    def start(row: Value) -> Value:
        return b.shift_right_arithmetic(b.multiply(row, b.subtract(2 * n - 1, row)), 1)

    row = b.subtract(row, b.convert(b.compare(start(row), k, "GT"), torch.int32))
    row = b.add(row, b.convert(b.compare(start(b.add(row, 1)), k, "LE"), torch.int32))
    column = b.add(b.add(b.subtract(k, start(row)), row), 1)
    return row, column


def _pair_differences(b: Builder, x: Value) -> tuple[Value, Sequence[Value]]:
    pairs = _pairs(b, x.shape[0])
    first, second = (take_rows(b, x, index, 0) for index in pairs)
    return b.subtract(first, second), pairs


@lowers(aten._pdist_forward.default, static=("p",))
def pdist(b: Builder, x: Value, p: float) -> Value:
    if b.out[0].numel() == 0 or x.numel == 0:
        return b.constant(0, x.dtype, b.out[0].shape)
    return shaped(b, vector_norm(b, _pair_differences(b, x)[0], p, [1]))


@lowers(aten._pdist_backward.default, static=("p",))
def pdist_backward(b: Builder, grad: Value, x: Value, p: float, distance: Value) -> Value:
    if p == 0 or grad.numel == 0 or x.numel == 0:
        return b.constant(0, x.dtype, x.shape)
    difference, pairs = _pair_differences(b, x)
    grad, distance = (b.reshape(v, [*v.shape, 1]) for v in (grad, distance))
    gradient = _norm_gradient(b, grad, difference, distance, p)
    total = b.constant(0, x.dtype, x.shape)
    for index, step in zip(pairs, (gradient, b.negate(gradient)), strict=True):
        total = b.scatter(total, index, step, lambda old, new: b.add(old, new), [1], [0], [0], 1)
    return shaped(b, total)
