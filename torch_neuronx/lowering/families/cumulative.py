# SPDX-License-Identifier: Apache-2.0
"""Cumulative sums, products, extrema and log-sum-exps.

A scan is written out as log2(n) steps of shift and combine (Hillis and Steele), in blocks when
the dimension is long. Barriers keep XLA from fusing the steps, which would compute step k anew
2^k times. Every such scan works for several operands and on any compiler; XLA's own rewriting
of reduce_window covers sums only where it recognizes them, and takes as long.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

from ...stablehlo import Builder, Value
from ...stablehlo.structured import highest, lowest
from ..indexing import wrap_dim
from ..promotion import opmath
from ..registry import lowers
from .reductions import shaped

aten = torch.ops.aten

# Up to _DIRECT elements the plain steps are fastest; beyond, blocks halve the number of passes over memory.
_DIRECT = 512
_BLOCK = 128

Combine = Callable[..., Sequence[Value]]


def scan(b: Builder, values: Sequence[Value], dim: int, combine: Combine, identity: Sequence[float]) -> list[Value]:
    """Inclusive scan along `dim`.

    combine(b, *left, *right): an associative combination of two groups of values, elementwise.
    identity: numbers that combine as the left group without effect.
    """
    size = values[0].shape[dim]
    if values[0].numel == 0:
        return list(values)
    if size > _DIRECT:
        return _scan_blocks(b, values, dim, combine, identity)
    step = 1
    # The identity takes part once, so that sums start from +0.0 as ATen's do.
    while step < max(size, 2):
        shifted = [_shift(b, v, dim, step, fill) for v, fill in zip(values, identity, strict=True)]
        values = [b.optimization_barrier(v) for v in combine(b, *shifted, *values)]
        step *= 2
    return list(values)


def _shift(b: Builder, x: Value, dim: int, step: int, fill: float) -> Value:
    low, high = [0] * x.ndim, [0] * x.ndim
    low[dim], high[dim] = step, -step
    return b.pad(x, low, high, fill)


def _scan_blocks(
    b: Builder, values: Sequence[Value], dim: int, combine: Combine, identity: Sequence[float]
) -> list[Value]:
    shape = values[0].shape
    size, blocks = shape[dim], math.ceil(shape[dim] / _BLOCK)
    split = [*shape[:dim], blocks, _BLOCK, *shape[dim + 1 :]]
    high = [blocks * _BLOCK - size if d == dim else 0 for d in range(len(shape))]
    values = [b.reshape(b.pad(v, [0] * v.ndim, high, fill), split) for v, fill in zip(values, identity, strict=True)]
    values = scan(b, values, dim + 1, combine, identity)
    outer = [n for d, n in enumerate(split) if d != dim + 1]
    totals = [b.reshape(b.slice_dim(v, dim + 1, _BLOCK - 1, _BLOCK), outer) for v in values]
    totals = scan(b, totals, dim, combine, identity)
    kept = [d for d in range(len(split)) if d != dim + 1]
    carries = [
        b.broadcast_in_dim(_shift(b, v, dim, 1, fill), split, kept) for v, fill in zip(totals, identity, strict=True)
    ]
    values = combine(b, *carries, *values)
    padded = [*shape[:dim], blocks * _BLOCK, *shape[dim + 1 :]]
    return [b.slice_dim(b.reshape(v, padded), dim, 0, size) for v in values]


def _single(b: Builder, x: Value, dim: int, function: Callable, identity: float) -> Value:
    """The scan of one operand, in the compute dtype of the result."""
    dtype = b.out[0].dtype
    x = b.convert(b.convert(x, dtype), opmath(dtype))
    if x.ndim:
        (x,) = scan(b, [x], wrap_dim(dim, x.ndim), lambda b, left, right: [function(b, left, right)], [identity])
    return shaped(b, x)


@lowers(aten.cumsum.default)
def cumsum(b: Builder, x: Value, dim: int, *, dtype=None) -> Value:
    return _single(b, x, dim, lambda b, left, right: b.add(left, right), 0)


@lowers(aten.cumprod.default)
def cumprod(b: Builder, x: Value, dim: int, *, dtype=None) -> Value:
    return _single(b, x, dim, lambda b, left, right: b.multiply(left, right), 1)


def _log_add_exp(b: Builder, x: Value, y: Value) -> Value:
    # Equal infinities would become inf - inf.
    same = b.and_(b.compare(x, y, "EQ"), b.not_(b.is_finite(x)))
    distance = b.negate(b.abs(b.subtract(x, y)))
    return b.select(same, x, b.add(b.maximum(x, y), b.log_plus_one(b.exponential(distance))))


@lowers(aten.logcumsumexp.default, aten._logcumsumexp.default)
def logcumsumexp(b: Builder, x: Value, dim: int) -> Value:
    return _single(b, x, dim, _log_add_exp, -math.inf)


def _cumulative_extreme(overload, direction: str, identity: Callable) -> None:
    def combine(b: Builder, x: Value, i: Value, y: Value, j: Value) -> tuple[Value, Value]:
        # Of equal elements the later one is reported, and the latest NaN.
        later = b.compare(y, x, direction)
        if x.dtype.is_floating_point:
            later = b.or_(b.and_(later, b.not_(b.is_nan(x))), b.is_nan(y))
        return b.select(later, y, x), b.select(later, j, i)

    @lowers(overload)
    def rule(b: Builder, x: Value, dim: int) -> tuple[Value, Value]:
        if x.ndim == 0:
            return x, b.constant(0, torch.int64)
        dim = wrap_dim(dim, x.ndim)
        index = b.iota(x.shape, dim, torch.int32 if x.shape[dim] < 2**31 else torch.int64)
        values, indices = scan(b, [x, index], dim, combine, [identity(x.dtype), 0])
        return shaped(b, values), shaped(b, indices, 1)


_cumulative_extreme(aten.cummax.default, "GE", lowest)
_cumulative_extreme(aten.cummin.default, "LE", highest)
