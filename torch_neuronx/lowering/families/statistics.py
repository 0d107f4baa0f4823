# SPDX-License-Identifier: Apache-2.0
"""Variance, standard deviation, vector norms and log-sum-exp.

The variance takes two passes (mean, then squared distances from it): the one-pass form
E[x^2] - E[x]^2 cancels in float32. Half types are computed in float32 and rounded once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from ...stablehlo import Builder, Value
from ..indexing import wrap_dim
from ..pointwise import Operand
from ..promotion import opmath, result_type
from ..registry import lowers
from .reductions import Dims, reduced_dims, shaped

aten = torch.ops.aten


def squared_magnitude(b: Builder, x: Value) -> Value:
    """|x|^2, real."""
    if x.dtype.is_complex:
        real, imag = b.real(x), b.imag(x)
        return b.add(b.multiply(real, real), b.multiply(imag, imag))
    return b.multiply(x, x)


def _variance_and_mean(b: Builder, x: Value, dim: Dims, correction: Operand | None) -> tuple[Value, Value]:
    x = b.convert(x, opmath(x.dtype))
    dims = reduced_dims(dim, x.ndim)
    count = math.prod(x.shape[d] for d in dims)
    mean = b.divide(b.reduce(x, dims, "add", keepdim=True), count)
    distances = squared_magnitude(b, b.subtract(x, mean))
    real = distances.dtype
    correction = b.value(1 if correction is None else correction, real)
    # ATen clamps the divisor at 0, so that too few elements give NaN or inf.
    divisor = b.maximum(b.subtract(float(count), correction), 0.0)
    return b.divide(b.reduce(distances, dims, "add"), divisor), mean


@lowers(aten.var.correction)
def var(b: Builder, x: Value, dim: Dims, *, correction: Operand | None, keepdim: bool) -> Value:
    return shaped(b, _variance_and_mean(b, x, dim, correction)[0])


@lowers(aten.std.correction)
def std(b: Builder, x: Value, dim: Dims, *, correction: Operand | None, keepdim: bool) -> Value:
    return shaped(b, b.sqrt(_variance_and_mean(b, x, dim, correction)[0]))


@lowers(aten.var_mean.correction)
def var_mean(b: Builder, x: Value, dim: Dims, *, correction: Operand | None, keepdim: bool) -> tuple[Value, Value]:
    variance, mean = _variance_and_mean(b, x, dim, correction)
    return shaped(b, variance), shaped(b, mean, 1)


@lowers(aten.std_mean.correction)
def std_mean(b: Builder, x: Value, dim: Dims, *, correction: Operand | None, keepdim: bool) -> tuple[Value, Value]:
    variance, mean = _variance_and_mean(b, x, dim, correction)
    return shaped(b, b.sqrt(variance)), shaped(b, mean, 1)


# -- norms ----------------------------------------------------------------------------------------


def vector_norm(b: Builder, x: Value, order: float, dims: Sequence[int]) -> Value:
    """(sum |x|^order)^(1/order) over `dims`, which disappear; real, in the dtype of `x`."""
    if order == 2:
        return b.sqrt(b.reduce(squared_magnitude(b, x), dims, "add"))
    magnitude = b.abs(x) if not x.dtype.is_complex else b.op("abs", [x], x.shape, x.dtype.to_real())
    if math.isinf(order):
        return b.reduce(magnitude, dims, "maximum" if order > 0 else "minimum")
    if order == 0:
        return b.reduce(b.convert(b.compare(magnitude, 0, "NE"), magnitude.dtype), dims, "add")
    if order == 1:
        return b.reduce(magnitude, dims, "add")
    return b.power(b.reduce(b.power(magnitude, order), dims, "add"), 1.0 / order)


def _norm(b: Builder, x: Value, order: float | None, dim: Dims, dtype: torch.dtype | None) -> Value:
    x = b.convert(x, x.dtype if dtype is None else dtype)
    x = b.convert(x, opmath(x.dtype))
    return shaped(b, vector_norm(b, x, 2 if order is None else order, reduced_dims(dim, x.ndim)))


@lowers(aten.linalg_vector_norm.default, static=("ord",))
def linalg_vector_norm(b: Builder, x: Value, ord: float, dim: Dims, keepdim: bool, *, dtype) -> Value:
    return _norm(b, x, ord, dim, dtype)


@lowers(
    aten.norm.Scalar,
    aten.norm.ScalarOpt_dtype,
    aten.norm.ScalarOpt_dim,
    aten.norm.ScalarOpt_dim_dtype,
    static=("p",),
)
def norm(b: Builder, x: Value, p: float | None, dim: Dims = None, keepdim: bool = False, *, dtype=None) -> Value:
    return _norm(b, x, p, dim, dtype)


@lowers(aten.dist.default, static=("p",))
def dist(b: Builder, x: Value, y: Value, p: float) -> Value:
    dtype = opmath(result_type(x, y))
    difference = b.subtract(b.convert(x, dtype), b.convert(y, dtype))
    return _norm(b, difference, p, None, None)


@lowers(aten.renorm.default, static=("p",))
def renorm(b: Builder, x: Value, p: float, dim: int, maxnorm: Operand) -> Value:
    wide = b.convert(x, opmath(x.dtype))
    kept = wrap_dim(dim, x.ndim)
    norm = vector_norm(b, wide, p, [d for d in range(x.ndim) if d != kept])
    limit = b.value(maxnorm, norm.dtype)
    factor = b.select(b.compare(norm, limit, "GT"), b.divide(limit, b.add(norm, 1e-7)), 1.0)
    return shaped(b, b.multiply(wide, b.convert(b.broadcast_in_dim(factor, x.shape, [kept]), wide.dtype)))


@lowers(aten.logsumexp.default)
def logsumexp(b: Builder, x: Value, dim: Dims, keepdim: bool) -> Value:
    x = b.convert(x, opmath(b.out[0].dtype))
    dims = reduced_dims(dim, x.ndim)
    largest = b.reduce(b.real(x) if x.dtype.is_complex else x, dims, "maximum", keepdim=True)
    # An infinite maximum would turn into inf - inf.
    largest = b.select(b.is_finite(largest), largest, 0.0)
    shift = b.complex(largest, b.constant(0, largest.dtype, largest.shape)) if x.dtype.is_complex else largest
    total = b.reduce(b.exponential(b.subtract(x, shift)), dims, "add", keepdim=True)
    return shaped(b, b.add(b.log(total), shift))
