# SPDX-License-Identifier: Apache-2.0
"""Complex numbers: parts, construction, conjugation, and the real views of complex tensors."""

from __future__ import annotations

import math

import torch

from ...stablehlo import Builder, Value
from ..pointwise import finish
from ..promotion import opmath
from ..registry import lowers

aten = torch.ops.aten


def conjugate(b: Builder, x: Value) -> Value:
    return b.complex(b.real(x), b.negate(b.imag(x))) if x.dtype.is_complex else x


@lowers(aten._conj.default, aten._conj_copy.default, aten._conj_physical.default, aten.conj_physical.default)
def _conj(b: Builder, x: Value) -> Value:
    return conjugate(b, x)


@lowers(aten._neg_view.default, aten._neg_view_copy.default)
def _neg_view(b: Builder, x: Value) -> Value:
    return b.negate(x)


@lowers(aten.complex.default)
def _complex(b: Builder, real: Value, imag: Value) -> Value:
    return b.complex(*b.broadcast(real, imag))


@lowers(aten.polar.default)
def _polar(b: Builder, magnitude: Value, angle: Value) -> Value:
    return b.complex(*b.broadcast(b.multiply(magnitude, b.cosine(angle)), b.multiply(magnitude, b.sine(angle))))


@lowers(aten.angle.default)
def _angle(b: Builder, x: Value) -> Value:
    if x.dtype.is_complex:
        return b.atan2(b.imag(x), b.real(x))
    x = b.convert(x, opmath(b.out[0].dtype))
    angle = b.select(b.compare(x, 0, "LT"), b.constant(math.pi, x.dtype), b.constant(0, x.dtype))
    return finish(b, b.select(b.is_nan(x), x, angle))


@lowers(aten.real.default)
def _real(b: Builder, x: Value) -> Value:
    return b.real(x) if x.dtype.is_complex else x


@lowers(aten.imag.default)
def _imag(b: Builder, x: Value) -> Value:
    return b.imag(x)


@lowers(aten.view_as_real.default, aten.view_as_real_copy.default)
def _view_as_real(b: Builder, x: Value) -> Value:
    parts = [b.reshape(part, [*x.shape, 1]) for part in (b.real(x), b.imag(x))]
    return b.concatenate(parts, x.ndim)


@lowers(aten.view_as_complex.default, aten.view_as_complex_copy.default)
def _view_as_complex(b: Builder, x: Value) -> Value:
    last = x.ndim - 1
    parts = [b.reshape(b.slice_dim(x, last, i, i + 1), x.shape[:-1]) for i in range(2)]
    return b.complex(*parts)
