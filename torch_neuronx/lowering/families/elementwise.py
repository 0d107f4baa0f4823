# SPDX-License-Identifier: Apache-2.0
"""Functions of one tensor, element by element."""

from __future__ import annotations

import math

import torch

from ...stablehlo import Builder, Value
from ..pointwise import arithmetic, finish, predicate
from ..promotion import opmath
from ..registry import lowers

aten = torch.ops.aten


def _is_discrete(x: Value) -> bool:
    return not (x.dtype.is_floating_point or x.dtype.is_complex)


def absolute(b: Builder, x: Value) -> Value:
    return b.abs(x) if x.dtype.is_signed else x


def reciprocal(b: Builder, x: Value) -> Value:
    return b.divide(b.constant(1, x.dtype), x)


def rounded(name: str):
    """`name` of the builder for floats; integers are whole already."""
    return lambda b, x: x if _is_discrete(x) else getattr(b, name)(x)


def truncate(b: Builder, x: Value) -> Value:
    return x if _is_discrete(x) else b.select(b.compare(x, 0, "LT"), b.ceil(x), b.floor(x))


def sign(b: Builder, x: Value) -> Value:
    """NaN and -0.0 give 0, as in PyTorch (StableHLO's sign keeps both)."""
    if x.dtype == torch.bool:
        return x
    positive = b.convert(b.compare(x, 0, "GT"), x.dtype)
    return b.subtract(positive, b.convert(b.compare(x, 0, "LT"), x.dtype)) if x.dtype.is_signed else positive


def sgn(b: Builder, x: Value) -> Value:
    return b.sign(x) if x.dtype.is_complex else sign(b, x)


def scaled(function: str, factor: float):
    return lambda b, x: b.multiply(getattr(b, function)(x), factor)


def sinc(b: Builder, x: Value) -> Value:
    angle = b.multiply(x, math.pi)
    return b.select(b.compare(x, 0, "EQ"), 1.0, b.divide(b.sine(angle), angle))


def arctangent(b: Builder, x: Value) -> Value:
    # XLA's vectorized code for atan2 with a constant 1 is wrong in one of the plugins.
    return b.atan2(x, b.optimization_barrier(b.constant(1, x.dtype)))


def digamma(b: Builder, x: Value) -> Value:
    """With the pole at zero signed as in PyTorch."""
    pole = b.select(b.is_negative(x), b.constant(math.inf, x.dtype), b.constant(-math.inf, x.dtype))
    return b.select(b.compare(x, 0, "EQ"), pole, b.digamma(x))


def entropy(b: Builder, x: Value) -> Value:
    inside = b.negate(b.multiply(x, b.log(x)))
    outside = b.select(b.compare(x, 0, "EQ"), b.constant(0, x.dtype), b.constant(-math.inf, x.dtype))
    return b.select(b.or_(b.compare(x, 0, "GT"), b.is_nan(x)), inside, b.broadcast_to(outside, x.shape))


def erfcx(b: Builder, x: Value) -> Value:
    """exp(x²) erfc(x), by erfc's asymptotic series where erfc itself would vanish."""
    y = b.divide(b.constant(0.5, x.dtype), b.multiply(x, x))
    series = b.constant(1, x.dtype, x.shape)
    for k in (15, 13, 11, 9, 7, 5, 3, 1):
        series = b.subtract(1.0, b.multiply(b.multiply(y, float(k)), series))
    tail = b.divide(series, b.multiply(x, math.sqrt(math.pi)))
    return b.select(b.compare(x, 9.0, "GT"), tail, b.multiply(b.exponential(b.multiply(x, x)), b.erfc(x)))


def log_ndtr(b: Builder, x: Value) -> Value:
    """log of the normal distribution function: the left tail through erfcx, so that it keeps its digits."""
    z = b.multiply(x, math.sqrt(0.5))
    left = b.subtract(b.log(b.multiply(erfcx(b, b.negate(z)), 0.5)), b.multiply(z, z))
    right = b.log_plus_one(b.multiply(b.erfc(z), -0.5))
    return b.select(b.compare(x, -1.0, "LT"), left, right)


def ndtri(b: Builder, x: Value) -> Value:
    return b.multiply(b.erf_inv(b.subtract(b.multiply(x, 2.0), 1.0)), math.sqrt(2))


_ARITHMETIC = {
    aten.acos: "acos",
    aten.acosh: "acosh",
    aten.asin: "asin",
    aten.asinh: "asinh",
    aten.atan: arctangent,
    aten.atanh: "atanh",
    aten.ceil: rounded("ceil"),
    aten.cos: "cosine",
    aten.cosh: "cosh",
    aten.deg2rad: lambda b, x: b.multiply(x, math.pi / 180),
    aten.digamma: digamma,
    aten.erf: "erf",
    aten.erfc: "erfc",
    aten.erfinv: "erf_inv",
    aten.exp: "exponential",
    aten.exp2: lambda b, x: b.power(b.constant(2, x.dtype), x),
    aten.expm1: "exponential_minus_one",
    aten.floor: rounded("floor"),
    aten.frac: lambda b, x: b.subtract(x, truncate(b, x)),
    aten.lgamma: "lgamma",
    aten.log: "log",
    aten.log10: scaled("log", 1 / math.log(10)),
    aten.log1p: "log_plus_one",
    aten.log2: scaled("log", 1 / math.log(2)),
    aten.neg: "negate",
    aten.rad2deg: lambda b, x: b.multiply(x, 180 / math.pi),
    aten.reciprocal: reciprocal,
    aten.round: rounded("round_nearest_even"),
    aten.rsqrt: "rsqrt",
    aten.sgn: sgn,
    aten.sign: sign,
    aten.sin: "sine",
    aten.sinc: sinc,
    aten.sinh: "sinh",
    aten.special_entr: entropy,
    aten.special_erfcx: erfcx,
    aten.special_log_ndtr: log_ndtr,
    aten.special_ndtri: ndtri,
    aten.sqrt: "sqrt",
    aten.tan: "tan",
    aten.tanh: "tanh",
    aten.trunc: truncate,
}

_PREDICATES = {
    aten.isinf: lambda b, x: _infinite(b, x, (math.inf, -math.inf)),
    aten.isneginf: lambda b, x: _infinite(b, x, (-math.inf,)),
    aten.isposinf: lambda b, x: _infinite(b, x, (math.inf,)),
    aten.isnan: lambda b, x: b.compare(x, x, "NE"),
    aten.logical_not: lambda b, x: b.compare(x, 0, "EQ"),
    aten.signbit: lambda b, x: b.is_negative(x) if x.dtype != torch.bool else b.constant(False, torch.bool),
}

for _packet, _function in _ARITHMETIC.items():
    arithmetic(_packet.default)(
        _function if callable(_function) else lambda b, x, _name=_function: getattr(b, _name)(x)
    )
for _packet, _function in _PREDICATES.items():
    predicate(_packet.default)(_function)


def _infinite(b: Builder, x: Value, values: tuple[float, ...]) -> Value:
    if _is_discrete(x):
        return b.constant(False, torch.bool)
    parts = [b.real(x), b.imag(x)] if x.dtype.is_complex else [x]
    found = [b.compare(part, value, "EQ") for part in parts for value in values]
    for other in found[1:]:
        found[0] = b.or_(found[0], other)
    return found[0]


@lowers(aten.abs.default)
def _abs(b: Builder, x: Value) -> Value:
    return finish(b, absolute(b, b.convert(x, opmath(x.dtype))))


@lowers(aten.bitwise_not.default)
def _bitwise_not(b: Builder, x: Value) -> Value:
    return b.not_(x)


@arithmetic(aten.logit.default)
def logit(b: Builder, x: Value, eps: Value | None) -> Value:
    if eps is not None:
        x = b.clamp(eps, x, b.subtract(1.0, eps))
    return b.log(b.divide(x, b.subtract(1.0, x)))


@lowers(aten.round.decimals)
def _round_decimals(b: Builder, x: Value, *, decimals: int) -> Value:
    if _is_discrete(x):
        return x
    x = b.convert(x, opmath(x.dtype))
    scale = 10.0 ** abs(decimals)
    shift, unshift = (b.multiply, b.divide) if decimals >= 0 else (b.divide, b.multiply)
    return finish(b, unshift(b.round_nearest_even(shift(x, scale)), scale))


@lowers(aten.nan_to_num.default)
def _nan_to_num(b: Builder, x: Value, nan, posinf, neginf) -> Value:
    if _is_discrete(x):
        return x
    if x.dtype.is_complex:
        parts = [_finite(b, part, nan, posinf, neginf) for part in (b.real(x), b.imag(x))]
        return b.complex(*parts)
    return _finite(b, x, nan, posinf, neginf)


def _finite(b: Builder, x: Value, nan, posinf, neginf) -> Value:
    limits = torch.finfo(x.dtype)

    def replacement(given, default: float) -> Value:
        return b.constant(default, x.dtype) if given is None else b.value(given, x.dtype)

    result = b.select(b.is_nan(x), replacement(nan, 0.0), x)
    result = b.select(b.compare(x, math.inf, "EQ"), replacement(posinf, limits.max), result)
    return b.select(b.compare(x, -math.inf, "EQ"), replacement(neginf, limits.min), result)


@lowers(aten.frexp.Tensor)
def _frexp(b: Builder, x: Value) -> tuple[Value, Value]:
    """Mantissa in [0.5, 1) and exponent, from the bits; denormals, which the device flushes, count as zero."""
    bits, fraction, bias = {
        torch.float64: (torch.int64, 52, 1022),
        torch.float32: (torch.int32, 23, 126),
        torch.bfloat16: (torch.int16, 7, 126),
        torch.float16: (torch.int16, 10, 14),
    }[x.dtype]
    mask = (1 << (8 * x.dtype.itemsize - 1 - fraction)) - 1
    word = b.bitcast_convert(x, bits)
    biased = b.and_(b.shift_right_logical(word, fraction), mask)
    regular = b.and_(b.compare(biased, 0, "NE"), b.compare(biased, mask, "NE"))
    mantissa = b.or_(b.and_(word, ~(mask << fraction)), bias << fraction)
    exponent = b.subtract(b.convert(biased, torch.int32), bias)
    return b.select(regular, b.bitcast_convert(mantissa, x.dtype), x), b.select(regular, exponent, 0)
