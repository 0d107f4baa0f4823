# SPDX-License-Identifier: Apache-2.0
"""Random numbers: Philox bits, and the distributions made of them.

Seed and offset of the device generator are operands (`Builder.random_bits`): a new seed never
compiles. The numbers differ from those of PyTorch's CPU and CUDA generators, which differ from
each other too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

from ...stablehlo import Builder, Value
from ..pointwise import Operand, finish
from ..promotion import opmath
from ..registry import lowers

aten = torch.ops.aten

# Bits of the significand: a uniform number with just as many never rounds up to 1.
_DIGITS = {torch.float64: 53, torch.float32: 24, torch.float16: 11, torch.bfloat16: 8}


# -- sources ------------------------------------------------------------------------------------


def uniform(b: Builder, shape: Sequence[int], dtype: torch.dtype) -> Value:
    """In [0, 1), with every digit that `dtype` has, in its compute dtype."""
    digits = _DIGITS[dtype]
    return b.multiply(_whole(b, shape, opmath(dtype), digits), 2.0**-digits)


def _whole(b: Builder, shape: Sequence[int], wide: torch.dtype, digits: int) -> Value:
    """Whole numbers in [0, 2^digits), as floats of dtype `wide`."""
    unsigned, signed, width = (
        (torch.uint64, torch.int64, 64) if wide == torch.float64 else (torch.uint32, torch.int32, 32)
    )
    bits = b.shift_right_logical(b.random_bits(shape, unsigned), width - digits)
    # Processors convert signed numbers faster.
    return b.convert(b.bitcast_convert(bits, signed), wide)


def _open_uniform(b: Builder, shape: Sequence[int], dtype: torch.dtype) -> Value:
    """In (0, 1]: safe to take the logarithm of, and fine near zero (all the bits, not just a significand)."""
    wide = opmath(dtype)
    unsigned, width = (torch.uint64, 64) if wide == torch.float64 else (torch.uint32, 32)
    bits = b.convert(b.random_bits(shape, unsigned), wide)
    return b.multiply(b.add(bits, 0.5), 2.0**-width)


def normal(b: Builder, shape: Sequence[int], dtype: torch.dtype) -> Value:
    """Standard normal numbers in the compute dtype of `dtype`, by the inverse of the distribution function."""
    wide = opmath(dtype)
    digits = _DIGITS[wide] - 1
    # Odd multiples of 2^-digits between -1 and 1: all exact, symmetric, neither end among them.
    step = 2.0**-digits
    u = b.add(b.multiply(_whole(b, shape, wide, digits), 2 * step), step - 1.0)
    return b.multiply(b.erf_inv(u), math.sqrt(2))


def exponential(b: Builder, shape: Sequence[int], dtype: torch.dtype) -> Value:
    """Exponentially distributed numbers of rate 1; never zero."""
    return b.negate(b.log(_open_uniform(b, shape, dtype)))


def integers(b: Builder, shape: Sequence[int], low: int, high: int) -> Value:
    """int64 in [low, high)."""
    span = high - low
    if span == 1 << 64:
        return b.bitcast_convert(b.random_bits(shape, torch.uint64), torch.int64)
    # Where 32 bits are many more than the span needs, the modulo's bias is as small as PyTorch's.
    dtype = torch.uint32 if span <= 1 << 28 else torch.uint64
    bits = b.remainder(b.random_bits(shape, dtype), b.constant(span, dtype))
    bits = b.convert(bits, torch.int64) if dtype == torch.uint32 else b.bitcast_convert(bits, torch.int64)
    return b.add(bits, low) if low else bits


def _is_real(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point or dtype.is_complex


def _like_out(b: Builder, source: Callable[..., Value], scale: Operand = 1.0, shift: Operand = 0.0) -> Value:
    """Numbers of `source` for the result, scaled and shifted (complex: both parts)."""
    out = b.out[0]
    dtype = out.dtype.to_real() if out.dtype.is_complex else out.dtype
    if out.dtype.is_complex:
        return b.complex(source(b, out.shape, dtype), source(b, out.shape, dtype))
    x = source(b, out.shape, dtype)
    if scale != 1.0 or shift != 0.0:
        x = b.add(b.multiply(x, b.value(scale, x.dtype)), b.value(shift, x.dtype))
    return finish(b, x)


# -- uniform ------------------------------------------------------------------------------------


@lowers(aten.rand.default, aten.rand.generator, aten.rand_like.default, aten.rand_like.generator)
def _rand(b: Builder, like: object) -> Value:
    return _like_out(b, uniform)


@lowers(aten.uniform.default)
def _uniform(b: Builder, x: Value, low: Operand, high: Operand) -> Value:
    dtype = opmath(x.dtype)
    low, high = b.value(low, dtype), b.value(high, dtype)
    return _like_out(b, uniform, b.subtract(high, low), low)


# -- normal -------------------------------------------------------------------------------------


@lowers(aten.randn.default, aten.randn.generator, aten.randn_like.default, aten.randn_like.generator)
def _randn(b: Builder, like: object) -> Value:
    if not b.out[0].dtype.is_complex:
        return _like_out(b, normal)
    # The variance of a complex normal number is 1: that of each part is a half.
    return b.multiply(_like_out(b, normal), math.sqrt(0.5))


@lowers(aten.normal_functional.default)
def _normal_functional(b: Builder, x: Value, mean: Operand, std: Operand) -> Value:
    if x.dtype.is_complex:
        scaled = b.multiply(_like_out(b, normal), b.multiply(b.value(std, x.dtype), math.sqrt(0.5)))
        return b.add(scaled, b.value(mean, x.dtype))
    return _like_out(b, normal, std, mean)


@lowers(aten.normal.float_float)
def _normal_of_size(b: Builder, mean: Operand, std: Operand, size: Sequence[int]) -> Value:
    return _like_out(b, normal, std, mean)


@lowers(aten.normal.Tensor_Tensor, aten.normal.Tensor_float, aten.normal.float_Tensor)
def _normal_of_tensors(b: Builder, mean: Operand, std: Operand) -> Value:
    return _like_out(b, normal, std, mean)


@lowers(aten.log_normal.default)
def _log_normal(b: Builder, x: Value, mean: Operand, std: Operand) -> Value:
    z = normal(b, x.shape, x.dtype)
    return finish(b, b.exponential(b.add(b.multiply(z, b.value(std, z.dtype)), b.value(mean, z.dtype))))


# -- integers -----------------------------------------------------------------------------------


@lowers(aten.randint.default, aten.randint.generator)
def _randint(b: Builder, high: int, size: Sequence[int]) -> Value:
    return _integers_like_out(b, 0, high)


@lowers(aten.randint.low, aten.randint.low_generator)
def _randint_low(b: Builder, low: int, high: int, size: Sequence[int]) -> Value:
    return _integers_like_out(b, low, high)


@lowers(aten.randint_like.default, aten.randint_like.generator)
def _randint_like(b: Builder, x: Value, high: int) -> Value:
    return _integers_like_out(b, 0, high)


@lowers(aten.randint_like.low_dtype, aten.randint_like.low_generator_dtype)
def _randint_like_low(b: Builder, x: Value, low: int, high: int) -> Value:
    return _integers_like_out(b, low, high)


@lowers(getattr(aten.random, "from"))
def _random_from(b: Builder, x: Value, low: int, high: int | None) -> Value:
    if high is None:
        high = (1 << _DIGITS[x.dtype]) + 1 if _is_real(x.dtype) else torch.iinfo(x.dtype).max + 1
    return _integers_like_out(b, low, high)


@lowers(aten.random.to)
def _random_to(b: Builder, x: Value, high: int) -> Value:
    return _integers_like_out(b, 0, high)


@lowers(aten.random.default)
def _random(b: Builder, x: Value) -> Value:
    if x.dtype == torch.bool:
        return _integers_like_out(b, 0, 2)
    return _integers_like_out(b, 0, (1 << _DIGITS[x.dtype]) + 1 if _is_real(x.dtype) else torch.iinfo(x.dtype).max + 1)


def _integers_like_out(b: Builder, low: int, high: int) -> Value:
    return finish(b, integers(b, b.out[0].shape, low, high))


@lowers(aten.randperm.default, aten.randperm.generator)
def _randperm(b: Builder, n: int) -> Value:
    """The order of random keys; two of 64 bits are practically never equal."""
    keys = b.random_bits((n,), torch.uint64)
    (_, order) = b.sort([keys, b.iota((n,), 0)], 0, lambda x, y, i, j: b.compare(x, y, "LT"))
    return finish(b, order)


# -- choices ------------------------------------------------------------------------------------


def _bernoulli(b: Builder, p: Operand) -> Value:
    """True with probability p."""
    dtype = torch.float64 if isinstance(p, Value) and p.dtype == torch.float64 and p.ndim else torch.float32
    return b.compare(uniform(b, b.out[0].shape, dtype), b.value(p, dtype), "LT")


@lowers(aten.bernoulli.default)
def _bernoulli_of(b: Builder, p: Value) -> Value:
    return finish(b, _bernoulli(b, p))


@lowers(aten.bernoulli.p, aten.bernoulli.Tensor)
def _bernoulli_like(b: Builder, x: Value, p: Operand) -> Value:
    return finish(b, _bernoulli(b, p))


@lowers(aten.native_dropout.default)
def _native_dropout(b: Builder, x: Value, p: Operand, train: bool | None) -> tuple[Value, Value]:
    if train is False:
        return finish(b, x), b.constant(True, torch.bool, x.shape)
    dtype = opmath(x.dtype)
    kept = b.subtract(1.0, b.value(p, dtype))
    mask = b.compare(uniform(b, x.shape, torch.float32), b.value(kept, torch.float32), "LT")
    scale = b.select(b.compare(kept, 0, "EQ"), 0.0, b.divide(1.0, kept))
    return finish(b, b.multiply(b.multiply(b.convert(x, dtype), b.convert(mask, dtype)), scale)), mask


@lowers(aten.native_dropout_backward.default)
def _native_dropout_backward(b: Builder, grad: Value, mask: Value, scale: Operand) -> Value:
    dtype = opmath(grad.dtype)
    return finish(b, b.multiply(b.multiply(b.convert(grad, dtype), b.convert(mask, dtype)), b.value(scale, dtype)))


@lowers(aten.rrelu_with_noise_functional.default)
def _rrelu(
    b: Builder, x: Value, noise: Value, low: Operand, high: Operand, training: bool, generator: object
) -> tuple[Value, Value]:
    dtype = opmath(x.dtype)
    wide, low, high = b.convert(x, dtype), b.value(low, dtype), b.value(high, dtype)
    negative = b.compare(wide, 0, "LE")
    if not training:
        slope = b.multiply(b.add(low, high), 0.5)
        return finish(b, b.select(negative, b.multiply(wide, slope), wide)), noise
    slope = b.add(b.multiply(uniform(b, x.shape, x.dtype), b.subtract(high, low)), low)
    factor = b.select(negative, slope, 1.0)
    return finish(b, b.multiply(wide, factor)), finish(b, factor, 1)


@lowers(aten.multinomial.default)
def _multinomial(b: Builder, weights: Value, count: int, replacement: bool) -> Value:
    """Rows of indices drawn with the (unnormalized) probabilities of each row."""
    rows = b.convert(weights, opmath(weights.dtype))
    rows = b.reshape(rows, (1, weights.shape[0])) if weights.ndim == 1 else rows
    drawn = _draw_again(b, rows, count) if replacement else _draw_distinct(b, rows, count)
    return b.reshape(drawn, b.out[0].shape)


def _draw_distinct(b: Builder, rows: Value, count: int) -> Value:
    """The largest of weight / exponential number: they come in the order of drawing without replacement."""
    keys = b.divide(rows, exponential(b, rows.shape, rows.dtype))
    order = b.sort([keys, b.iota(rows.shape, 1)], 1, lambda x, y, i, j: b.compare(x, y, "GT"))[1]
    return b.slice_dim(order, 1, 0, count)


def _draw_again(b: Builder, rows: Value, count: int) -> Value:
    """How many cumulative weights a uniform share of the total has passed."""
    batch, categories = rows.shape
    cumulative, step = rows, 1
    while step < categories:
        cumulative = b.add(cumulative, b.pad(cumulative, [0, step], [0, -step]))
        step *= 2
    total = b.slice_dim(cumulative, 1, categories - 1, categories)
    share = b.multiply(uniform(b, (batch, count), rows.dtype), total)
    passed = b.compare(b.reshape(cumulative, (batch, 1, categories)), b.reshape(share, (batch, count, 1)), "LE")
    return b.minimum(b.reduce(b.convert(passed, torch.int64), [2], "add"), categories - 1)


# -- other distributions ------------------------------------------------------------------------


@lowers(aten.exponential.default)
def _exponential(b: Builder, x: Value, rate: Operand) -> Value:
    z = exponential(b, x.shape, x.dtype)
    return finish(b, b.divide(z, b.value(rate, z.dtype)))


@lowers(aten.geometric.default)
def _geometric(b: Builder, x: Value, p: Operand) -> Value:
    """How many trials until the first success."""
    wide = opmath(x.dtype) if _is_real(x.dtype) else torch.float32
    z = _open_uniform(b, x.shape, wide)
    trials = b.ceil(b.divide(b.log(z), b.log_plus_one(b.negate(b.value(p, wide)))))
    return finish(b, b.maximum(trials, 1.0))


@lowers(aten.cauchy.default)
def _cauchy(b: Builder, x: Value, median: Operand, sigma: Operand) -> Value:
    u = uniform(b, x.shape, opmath(x.dtype))
    z = b.tan(b.multiply(b.subtract(u, 0.5), math.pi))
    return finish(b, b.add(b.multiply(z, b.value(sigma, z.dtype)), b.value(median, z.dtype)))
