# SPDX-License-Identifier: Apache-2.0
"""Fourier transforms."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from ...stablehlo import Builder, Value
from ..indexing import wrap_dim
from ..registry import lowers

aten = torch.ops.aten

# stablehlo.fft transforms at most this many dimensions at once, and only the last ones.
_GROUP = 3
# fft_norm_mode of ATen: the factor is 1, 1 / sqrt(n) or 1 / n.
_EXPONENT = {0: 0.0, 1: -0.5, 2: -1.0}


def _factor(sizes: Sequence[int], normalization: int) -> float:
    return math.prod(sizes) ** _EXPONENT[normalization]


def _scale(b: Builder, x: Value, factor: float) -> Value:
    if factor == 1:
        return x
    if not x.dtype.is_complex:
        return b.multiply(x, factor)
    # By parts: a complex product would make NaN of infinite elements.
    return b.complex(b.multiply(b.real(x), factor), b.multiply(b.imag(x), factor))


def _transform(b: Builder, x: Value, dims: Sequence[int], kind: str, length: int | None = None) -> Value:
    """FFT, IFFT, RFFT or IRFFT over up to three dimensions, unnormalized; `length`: of an IRFFT's result."""
    order = [d for d in range(x.ndim) if d not in dims] + list(dims)
    x = b.transpose(x, order)
    sizes = list(x.shape[-len(dims) :])
    if length is not None:
        sizes[-1] = length
    last = {"RFFT": sizes[-1] // 2 + 1}.get(kind, sizes[-1])
    shape = [*x.shape[: x.ndim - len(dims)], *sizes[:-1], last]
    dtype = {"RFFT": x.dtype.to_complex(), "IRFFT": x.dtype.to_real()}.get(kind, x.dtype)
    lengths = ", ".join(map(str, sizes))
    attributes = f"fft_type = #stablehlo<fft_type {kind}>, fft_length = array<i64: {lengths}>"
    result = b.op("fft", [x], shape, dtype, attributes)
    if kind in ("IFFT", "IRFFT"):
        result = _scale(b, result, math.prod(sizes))
    return b.transpose(result, [order.index(d) for d in range(x.ndim)])


def _complex_transform(b: Builder, x: Value, dims: Sequence[int], forward: bool) -> Value:
    for first in range(0, len(dims), _GROUP):
        x = _transform(b, x, dims[first : first + _GROUP], "FFT" if forward else "IFFT")
    return x


def _empty(b: Builder) -> Value:
    return b.constant(0, b.out[0].dtype, b.out[0].shape)


@lowers(aten._fft_c2c.default)
def fft_c2c(b: Builder, x: Value, dim: Sequence[int], normalization: int, forward: bool) -> Value:
    if x.numel == 0:
        return _empty(b)
    dims = [wrap_dim(d, x.ndim) for d in dim]
    result = _complex_transform(b, x, dims, forward)
    return _scale(b, result, _factor([x.shape[d] for d in dims], normalization))


@lowers(aten._fft_r2c.default)
def fft_r2c(b: Builder, x: Value, dim: Sequence[int], normalization: int, onesided: bool) -> Value:
    if x.numel == 0:
        return _empty(b)
    dims = [wrap_dim(d, x.ndim) for d in dim]
    factor = _factor([x.shape[d] for d in dims], normalization)
    if onesided:
        x = _complex_transform(b, _transform(b, x, dims[-1:], "RFFT"), dims[:-1], True)
    else:
        x = _complex_transform(b, b.convert(x, x.dtype.to_complex()), dims, True)
    return _scale(b, x, factor)


@lowers(aten._fft_c2r.default)
def fft_c2r(b: Builder, x: Value, dim: Sequence[int], normalization: int, last_dim_size: int) -> Value:
    if b.out[0].numel() == 0:
        return _empty(b)
    dims = [wrap_dim(d, x.ndim) for d in dim]
    x = _complex_transform(b, x, dims[:-1], False)
    result = _transform(b, x, dims[-1:], "IRFFT", last_dim_size)
    return _scale(b, result, _factor([result.shape[d] for d in dims], normalization))
