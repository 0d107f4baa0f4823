# SPDX-License-Identifier: Apache-2.0
"""Functions of two and three tensors, element by element, with broadcasting."""

from __future__ import annotations

import math
from typing import Any

import torch

from ...stablehlo import Builder, Value
from ..pointwise import Operand, arithmetic, finish, predicate
from ..promotion import opmath
from ..registry import LoweringError, lowers, lowers_of_library
from ..rounding import operand
from .elementwise import digamma, truncate

aten = torch.ops.aten


# -- sums, products, quotients ------------------------------------------------------------------


@arithmetic(aten.add.Tensor, aten.add.Scalar)
def _add(b: Builder, x: Value, y: Value, alpha: Value) -> Value:
    return b.add(x, b.multiply(y, alpha))


@arithmetic(aten.sub.Tensor, aten.sub.Scalar)
def _sub(b: Builder, x: Value, y: Value, alpha: Value) -> Value:
    return b.subtract(x, b.multiply(y, alpha))


@arithmetic(aten.rsub.Tensor, aten.rsub.Scalar)
def _rsub(b: Builder, x: Value, y: Value, alpha: Value) -> Value:
    return b.subtract(y, b.multiply(x, alpha))


@arithmetic(aten.mul.Tensor, aten.mul.Scalar)
def _mul(b: Builder, x: Value, y: Value) -> Value:
    return b.multiply(x, y)


@arithmetic(aten.div.Tensor, aten.div.Scalar)
def _div(b: Builder, x: Value, y: Value) -> Value:
    return b.divide(x, y)


@lowers(aten.div.Tensor_mode, aten.div.Scalar_mode)
def _div_mode(b: Builder, x: Value, y: Operand, *, rounding_mode: str | None) -> Value:
    dtype = opmath(b.out[0].dtype)
    x, y = b.convert(x, dtype), b.value(y, dtype)
    if rounding_mode == "floor":
        return finish(b, floor_divide(b, x, y))
    quotient = b.divide(x, y)
    return finish(b, quotient if rounding_mode is None else truncate(b, quotient))


def floor_divide(b: Builder, x: Value, y: Value) -> Value:
    """Python's floor division; a quotient of zero takes the sign that true division gives it."""
    if not x.dtype.is_floating_point:
        quotient, rest = b.divide(x, y), b.remainder(x, y)
        if not x.dtype.is_signed:
            return quotient
        below = b.and_(b.compare(rest, 0, "NE"), b.compare(b.xor(rest, y), 0, "LT"))
        return b.subtract(quotient, b.convert(below, x.dtype))
    rest = b.remainder(x, y)
    exact = b.divide(b.subtract(x, rest), y)
    below = b.and_(b.compare(rest, 0, "NE"), b.compare(b.compare(rest, 0, "LT"), b.compare(y, 0, "LT"), "NE"))
    exact = b.subtract(exact, b.convert(below, x.dtype))
    floor = b.floor(exact)
    # (x - rest) / y may come out a hair below the whole number it stands for.
    floor = b.select(b.compare(b.subtract(exact, floor), 0.5, "GT"), b.add(floor, 1.0), floor)
    true = b.divide(x, y)
    signed_zero = copysign(b, b.constant(0, x.dtype, exact.shape), true)
    floor = b.select(b.compare(exact, 0, "EQ"), signed_zero, floor)
    return b.select(b.compare(y, 0, "EQ"), true, floor)


arithmetic(aten.floor_divide.default, aten.floor_divide.Scalar)(floor_divide)


@arithmetic(aten.fmod.Tensor, aten.fmod.Scalar)
def _fmod(b: Builder, x: Value, y: Value) -> Value:
    return b.remainder(x, y)


@arithmetic(aten.remainder.Tensor, aten.remainder.Scalar, aten.remainder.Scalar_Tensor)
def remainder(b: Builder, x: Value, y: Value) -> Value:
    """The remainder with the sign of the divisor."""
    rest = b.remainder(x, y)
    if not x.dtype.is_signed:
        return rest
    other_sign = b.compare(b.compare(rest, 0, "LT"), b.compare(y, 0, "LT"), "NE")
    return b.select(b.and_(b.compare(rest, 0, "NE"), other_sign), b.add(rest, y), rest)


# -- powers ---------------------------------------------------------------------------------------


@arithmetic(aten.pow.Tensor_Tensor, aten.pow.Scalar)
def power(b: Builder, x: Value, y: Value) -> Value:
    if x.dtype.is_floating_point:
        return b.power(x, y)
    if x.dtype.is_complex:
        # XLA gives NaN for 0 ** 0.
        return b.select(b.compare(y, 0, "EQ"), b.constant(1, x.dtype), b.power(x, y))
    return _integer_power(b, x, y)


def _integer_power(b: Builder, x: Value, y: Value) -> Value:
    """Modulo 2^bits, by squaring; XLA's own power looks at six bits of the exponent."""
    if x.dtype == torch.bool:
        return b.or_(x, b.not_(y))

    def unfinished(result: Value, base: Value, exponent: Value) -> Value:
        return b.reduce(b.compare(exponent, 0, "GT"), range(exponent.ndim), "or")

    def step(result: Value, base: Value, exponent: Value) -> tuple[Value, Value, Value]:
        odd = b.compare(b.and_(exponent, 1), 1, "EQ")
        result = b.select(odd, b.multiply(result, base), result)
        return result, b.multiply(base, base), b.shift_right_logical(exponent, 1)

    x, y = b.broadcast(x, y)
    count = b.maximum(y, 0) if x.dtype.is_signed else y
    result = b.while_loop((b.constant(1, x.dtype, x.shape), x, count), unfinished, step)[0]
    if not x.dtype.is_signed:
        return result
    # A reciprocal is whole for 1 and -1 only.
    sign = b.select(b.compare(b.and_(y, 1), 1, "EQ"), x, b.multiply(x, x))
    unit = b.compare(b.abs(x), 1, "EQ")
    return b.select(b.compare(y, 0, "LT"), b.select(unit, sign, 0), result)


# The exponent is part of the program: squares and roots are far cheaper than a general power.
@lowers(aten.pow.Tensor_Scalar, static=("exponent",))
def _pow_scalar(b: Builder, x: Value, exponent: Any) -> Value:
    dtype = opmath(b.out[0].dtype)
    x = operand(b, x, dtype)
    one = b.constant(1, dtype)
    if dtype.is_floating_point and exponent in (0.5, -0.5):
        root = b.sqrt(x)
        return finish(b, root if exponent > 0 else b.divide(one, root))
    if dtype.is_floating_point and exponent in (-1, -2):
        return finish(b, b.divide(one, x if exponent == -1 else b.multiply(x, x)))
    if exponent in (0, 1, 2, 3) and dtype != torch.bool:
        result = one
        for _ in range(int(exponent)):
            result = x if result is one else b.multiply(result, x)
        return finish(b, result)
    return finish(b, power(b, x, b.constant(exponent, dtype)))


# -- comparison -----------------------------------------------------------------------------------


def comparison(direction: str):
    return lambda b, x, y: b.compare(x, y, direction)


for _name, _direction in {"eq": "EQ", "ne": "NE", "lt": "LT", "le": "LE", "gt": "GT", "ge": "GE"}.items():
    _packet = getattr(aten, _name)
    predicate(_packet.Tensor, _packet.Scalar)(comparison(_direction))


@lowers(aten.logical_and.default)
def _logical_and(b: Builder, x: Value, y: Value) -> Value:
    return b.and_(b.convert(x, torch.bool), b.convert(y, torch.bool))


@lowers(aten.logical_or.default)
def _logical_or(b: Builder, x: Value, y: Value) -> Value:
    return b.or_(b.convert(x, torch.bool), b.convert(y, torch.bool))


@lowers(aten.logical_xor.default)
def _logical_xor(b: Builder, x: Value, y: Value) -> Value:
    return b.xor(b.convert(x, torch.bool), b.convert(y, torch.bool))


# -- bits -------------------------------------------------------------------------------------------


def _bitwise(name: str, method: str):
    def rule(b: Builder, x: Value, y: Value) -> Value:
        if x.dtype.is_floating_point or x.dtype.is_complex:
            raise NotImplementedError(f"{name} is not defined for {x.dtype}")
        return getattr(b, method)(x, y)

    return rule


for _name, _method in {"and": "and_", "or": "or_", "xor": "xor"}.items():
    _packet = getattr(aten, f"bitwise_{_name}")
    arithmetic(_packet.Tensor, _packet.Scalar, _packet.Scalar_Tensor)(_bitwise(f"bitwise_{_name}", _method))


@arithmetic(
    aten.bitwise_left_shift.Tensor,
    aten.bitwise_left_shift.Tensor_Scalar,
    aten.bitwise_left_shift.Scalar_Tensor,
    aten.__lshift__.Tensor,
    aten.__lshift__.Scalar,
)
def _left_shift(b: Builder, x: Value, y: Value) -> Value:
    return b.shift_left(x, y)


@arithmetic(
    aten.bitwise_right_shift.Tensor,
    aten.bitwise_right_shift.Tensor_Scalar,
    aten.bitwise_right_shift.Scalar_Tensor,
    aten.__rshift__.Tensor,
    aten.__rshift__.Scalar,
)
def _right_shift(b: Builder, x: Value, y: Value) -> Value:
    return b.shift_right_arithmetic(x, y) if x.dtype.is_signed else b.shift_right_logical(x, y)


# -- extrema, bounds ----------------------------------------------------------------------------------


@arithmetic(aten.maximum.default, aten.clamp_min.default, aten.clamp_min.Tensor)
def _maximum(b: Builder, x: Value, y: Value) -> Value:
    return b.maximum(x, y)


@arithmetic(aten.minimum.default, aten.clamp_max.default, aten.clamp_max.Tensor)
def _minimum(b: Builder, x: Value, y: Value) -> Value:
    return b.minimum(x, y)


def _ignoring_nan(method: str):
    def extremum(b: Builder, x: Value, y: Value) -> Value:
        result = getattr(b, method)(x, y)
        if not x.dtype.is_floating_point:
            return result
        return b.select(b.is_nan(x), y, b.select(b.is_nan(y), x, result))

    return extremum


arithmetic(aten.fmax.default)(_ignoring_nan("maximum"))
arithmetic(aten.fmin.default)(_ignoring_nan("minimum"))


@arithmetic(aten.clamp.default, aten.clamp.Tensor)
def _clamp(b: Builder, x: Value, low: Value | None, high: Value | None) -> Value:
    x = x if low is None else b.maximum(x, low)
    return x if high is None else b.minimum(x, high)


# -- signs, floating point --------------------------------------------------------------------------------


def copysign(b: Builder, x: Value, y: Value) -> Value:
    magnitude = b.abs(x)
    return b.select(b.is_negative(y), b.negate(magnitude), magnitude)


arithmetic(aten.copysign.Tensor, aten.copysign.Scalar)(copysign)


@arithmetic(aten.heaviside.default)
def _heaviside(b: Builder, x: Value, at_zero: Value) -> Value:
    return b.select(b.compare(x, 0, "EQ"), at_zero, b.convert(b.compare(x, 0, "GT"), x.dtype))


@lowers(aten.nextafter.default)
def _nextafter(b: Builder, x: Value, y: Value) -> Value:
    dtype = b.out[0].dtype
    return finish(b, b.next_after(b.convert(x, dtype), b.convert(y, dtype)))


@arithmetic(aten.atan2.default)
def _atan2(b: Builder, y: Value, x: Value) -> Value:
    return b.atan2(y, x)


@arithmetic(aten.hypot.default)
def _hypot(b: Builder, x: Value, y: Value) -> Value:
    """Scaled by the larger magnitude, so that squares neither overflow nor vanish."""
    x, y = b.broadcast(b.abs(x), b.abs(y))
    large, small = b.maximum(x, y), b.minimum(x, y)
    ratio = b.divide(small, large)
    result = b.multiply(large, b.sqrt(b.add(1.0, b.multiply(ratio, ratio))))
    result = b.select(b.compare(large, 0, "EQ"), large, result)
    infinite = b.or_(b.compare(x, math.inf, "EQ"), b.compare(y, math.inf, "EQ"))
    return b.select(infinite, math.inf, result)


# -- logarithms ---------------------------------------------------------------------------------------------


def _zero_times_log(log: str):
    """x * log(y), which is 0 for x = 0 unless y is NaN."""

    def product(b: Builder, x: Value, y: Value) -> Value:
        result = b.select(b.compare(x, 0, "EQ"), 0.0, b.multiply(x, getattr(b, log)(y)))
        return b.select(b.is_nan(y), math.nan, result)

    return product


arithmetic(aten.xlogy.Tensor, aten.xlogy.Scalar_Self, aten.xlogy.Scalar_Other)(_zero_times_log("log"))
arithmetic(aten.special_xlog1py.default, aten.special_xlog1py.self_scalar, aten.special_xlog1py.other_scalar)(
    _zero_times_log("log_plus_one")
)


@arithmetic(aten.logaddexp.default)
def _logaddexp(b: Builder, x: Value, y: Value) -> Value:
    if x.dtype.is_complex:
        raise LoweringError("[logaddexp] complex operands have no lowering; compute it on the CPU")
    difference = b.abs(b.subtract(x, y))
    result = b.add(b.maximum(x, y), b.log_plus_one(b.exponential(b.negate(difference))))
    # Equal infinities have no difference.
    return b.select(b.and_(b.compare(x, y, "EQ"), b.compare(b.abs(x), math.inf, "EQ")), x, result)


@arithmetic(aten.logaddexp2.default)
def _logaddexp2(b: Builder, x: Value, y: Value) -> Value:
    ln2 = math.log(2)
    return b.multiply(_logaddexp(b, b.multiply(x, ln2), b.multiply(y, ln2)), 1 / ln2)


arithmetic(aten.special_zeta.default, aten.special_zeta.self_scalar, aten.special_zeta.other_scalar)(
    lambda b, x, q: b.zeta(x, q)
)


@lowers(aten.polygamma.default)
def _polygamma(b: Builder, n: int, x: Value) -> Value:
    x = b.convert(x, opmath(b.out[0].dtype))
    if n == 0:
        return finish(b, digamma(b, x))
    if n > 1:
        result = b.multiply(b.zeta(b.constant(n + 1, x.dtype, x.shape), x), (-1.0) ** (n + 1) * math.factorial(n))
        return finish(b, result)
    # The trigamma function's reflection: psi1(1 - x) + psi1(x) = (pi / sin(pi x))^2.
    left = b.compare(x, 0.5, "LT")
    right = b.select(left, b.subtract(1.0, x), x)
    result = b.zeta(b.constant(2, x.dtype, x.shape), right)
    result = b.select(b.compare(right, math.inf, "EQ"), 0.0, result)
    ratio = b.divide(math.pi, b.sine(b.multiply(x, math.pi)))
    return finish(b, b.select(left, b.subtract(b.multiply(ratio, ratio), result), result))


# -- integers -------------------------------------------------------------------------------------------------


def gcd(b: Builder, x: Value, y: Value) -> Value:
    """Euclid's algorithm on all elements at once, until every remainder is zero."""

    def unfinished(x: Value, y: Value) -> Value:
        return b.reduce(b.compare(y, 0, "NE"), range(y.ndim), "or")

    def step(x: Value, y: Value) -> tuple[Value, Value]:
        done = b.compare(y, 0, "EQ")
        return b.select(done, x, y), b.select(done, y, b.remainder(x, b.select(done, 1, y)))

    x, y = b.broadcast(*(b.abs(v) if v.dtype.is_signed else v for v in (x, y)))
    return b.while_loop((x, y), unfinished, step)[0]


arithmetic(aten.gcd.default)(gcd)


@arithmetic(aten.lcm.default)
def _lcm(b: Builder, x: Value, y: Value) -> Value:
    divisor = gcd(b, x, y)
    quotient = b.divide(x, b.select(b.compare(divisor, 0, "EQ"), 1, divisor))
    product = b.multiply(quotient, y)
    return b.abs(product) if product.dtype.is_signed else product


# -- three operands -------------------------------------------------------------------------------------------------


@lowers(aten.where.self)
def _where(b: Builder, condition: Value, x: Value, y: Value) -> Value:
    dtype = b.out[0].dtype
    return finish(b, b.select(b.convert(condition, torch.bool), b.convert(x, dtype), b.convert(y, dtype)))


@arithmetic(aten.lerp.Scalar, aten.lerp.Tensor)
def lerp(b: Builder, start: Value, end: Value, weight: Value) -> Value:
    """From the nearer end, so that the weights 0 and 1 give the ends exactly."""
    difference = b.subtract(end, start)
    near = b.add(start, b.multiply(weight, difference))
    far = b.subtract(end, b.multiply(difference, b.subtract(b.constant(1, weight.dtype), weight)))
    magnitude = b.abs(weight)
    return b.select(b.compare(magnitude, 0.5, "LT"), near, far)


@arithmetic(aten.addcmul.default)
def _addcmul(b: Builder, x: Value, y: Value, z: Value, value: Value) -> Value:
    return b.add(x, b.multiply(b.multiply(value, y), z))


# Dynamo's form of addcmul with a tensor for `value`, as optimizers without lists have it; Inductor registers it.
@lowers_of_library("prims::fma")
def fma(b: Builder, x: Operand, y: Operand, z: Operand) -> Value:
    dtype = opmath(b.out[0].dtype)
    x, y, z = b.broadcast(*(b.value(v, dtype) for v in (x, y, z)))
    return finish(b, b.add(b.multiply(x, y), z))


@arithmetic(aten.addcdiv.default)
def _addcdiv(b: Builder, x: Value, y: Value, z: Value, value: Value) -> Value:
    return b.add(x, b.divide(b.multiply(value, y), z))
