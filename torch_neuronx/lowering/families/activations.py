# SPDX-License-Identifier: Apache-2.0
"""Activation functions and their gradients."""

from __future__ import annotations

import math

import torch

from ...stablehlo import Builder, Value
from ..pointwise import Operand, arithmetic, finish
from ..promotion import opmath
from ..registry import lowers
from ..rounding import operand

aten = torch.ops.aten

# gelu's tanh form: 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))
_GELU_SCALE = math.sqrt(2 / math.pi)
_GELU_CUBIC = 0.044715


# -- rectifiers ---------------------------------------------------------------------------------


@arithmetic(aten.relu.default)
def relu(b: Builder, x: Value) -> Value:
    # Not maximum(x, 0): that may give 0.0 for -0.0, which PyTorch keeps.
    return b.select(b.compare(x, 0, "LT"), 0, x)


@arithmetic(aten.threshold.default)
def _threshold(b: Builder, x: Value, threshold: Value, value: Value) -> Value:
    return b.select(b.compare(x, threshold, "LE"), value, x)


@arithmetic(aten.threshold_backward.default)
def _threshold_backward(b: Builder, grad: Value, x: Value, threshold: Value) -> Value:
    return b.select(b.compare(x, threshold, "LE"), 0, grad)


@arithmetic(aten.leaky_relu.default)
def _leaky_relu(b: Builder, x: Value, slope: Value) -> Value:
    return b.select(b.compare(x, 0, "GT"), x, b.multiply(x, slope))


def _leaky_relu_gradient(b: Builder, grad: Value, x: Value, slope: Value) -> Value:
    return b.select(b.compare(x, 0, "GT"), grad, b.multiply(grad, slope))


@lowers(aten.leaky_relu_backward.default)
def _leaky_relu_backward(b: Builder, grad: Value, x: Value, slope: Operand, self_is_result: bool) -> Value:
    # The sign of the result is that of the input: PyTorch admits no negative slope here.
    dtype = opmath(b.out[0].dtype)
    return finish(b, _leaky_relu_gradient(b, b.convert(grad, dtype), b.convert(x, dtype), b.value(slope, dtype)))


@arithmetic(aten._prelu_kernel.default)
def _prelu(b: Builder, x: Value, weight: Value) -> Value:
    return b.select(b.compare(x, 0, "GT"), x, b.multiply(weight, x))


@lowers(aten._prelu_kernel_backward.default)
def _prelu_backward(b: Builder, grad: Value, x: Value, weight: Value) -> tuple[Value, Value]:
    dtype = opmath(x.dtype)
    grad, x, weight = (b.convert(v, dtype) for v in (grad, x, weight))
    positive = b.compare(x, 0, "GT")
    grad_x = b.select(positive, grad, b.multiply(weight, grad))
    grad_weight = b.select(positive, 0.0, b.multiply(x, grad))
    return finish(b, grad_x, 0), finish(b, grad_weight, 1)


@arithmetic(aten.hardtanh.default)
def _hardtanh(b: Builder, x: Value, low: Value, high: Value) -> Value:
    return b.clamp(low, x, high)


@arithmetic(aten.hardtanh_backward.default)
def _hardtanh_backward(b: Builder, grad: Value, x: Value, low: Value, high: Value) -> Value:
    return b.select(b.and_(b.compare(x, low, "GT"), b.compare(x, high, "LT")), grad, 0)


# -- exponential units -----------------------------------------------------------------------------


@arithmetic(aten.elu.default)
def _elu(b: Builder, x: Value, alpha: Value, scale: Value, input_scale: Value) -> Value:
    negative = b.multiply(b.exponential_minus_one(b.multiply(x, input_scale)), b.multiply(alpha, scale))
    return b.select(b.compare(x, 0, "LT"), negative, b.multiply(x, scale))


@lowers(aten.elu_backward.default)
def _elu_backward(
    b: Builder, grad: Value, alpha: Operand, scale: Operand, input_scale: Operand, is_result: bool, x: Value
) -> Value:
    dtype = opmath(b.out[0].dtype)
    grad, x, alpha, scale, input_scale = (b.value(v, dtype) for v in (grad, x, alpha, scale, input_scale))
    slope = b.multiply(alpha, scale)
    if is_result:
        negative = b.multiply(b.multiply(grad, input_scale), b.add(x, slope))
    else:
        exponential = b.exponential(b.multiply(x, input_scale))
        negative = b.multiply(b.multiply(grad, b.multiply(input_scale, slope)), exponential)
    return finish(b, b.select(b.compare(x, 0, "LE"), negative, b.multiply(grad, scale)))


@arithmetic(aten.celu.default)
def _celu(b: Builder, x: Value, alpha: Value) -> Value:
    negative = b.multiply(b.exponential_minus_one(b.divide(x, alpha)), alpha)
    return b.select(b.compare(x, 0, "LT"), negative, x)


# -- sigmoids -----------------------------------------------------------------------------------------


@arithmetic(aten.sigmoid.default)
def _sigmoid(b: Builder, x: Value) -> Value:
    return b.logistic(x)


@arithmetic(aten.sigmoid_backward.default)
def _sigmoid_backward(b: Builder, grad: Value, y: Value) -> Value:
    return b.multiply(grad, b.multiply(b.subtract(1, y), y))


@arithmetic(aten.tanh_backward.default)
def _tanh_backward(b: Builder, grad: Value, y: Value) -> Value:
    return b.multiply(grad, b.subtract(1, b.multiply(y, y)))


@arithmetic(aten.logit_backward.default)
def _logit_backward(b: Builder, grad: Value, x: Value, eps: Value | None) -> Value:
    gradient = b.divide(grad, b.multiply(x, b.subtract(1.0, x)))
    low = b.constant(0, x.dtype) if eps is None else eps
    outside = b.or_(b.compare(x, low, "LT"), b.compare(x, b.subtract(1.0, low), "GT"))
    return b.select(outside, math.nan if eps is None else 0.0, gradient)


@arithmetic(aten.silu.default)
def silu(b: Builder, x: Value) -> Value:
    return b.multiply(x, b.logistic(x))


@arithmetic(aten.silu_backward.default)
def _silu_backward(b: Builder, grad: Value, x: Value) -> Value:
    y = b.logistic(x)
    return b.multiply(b.multiply(grad, y), b.add(1.0, b.multiply(x, b.subtract(1.0, y))))


@lowers(aten.log_sigmoid_forward.default)
def _log_sigmoid_forward(b: Builder, x: Value) -> tuple[Value, Value]:
    """The second result, PyTorch's buffer, is exp(-|x|) on the CPU and empty elsewhere; see `b.out`."""
    wide = b.convert(x, opmath(x.dtype))
    small = b.exponential(b.negate(b.abs(wide)))
    result = b.subtract(b.minimum(wide, 0.0), b.log_plus_one(small))
    buffer = b.out[1]
    if buffer.numel() == 0 and x.numel != 0:
        return finish(b, result), b.constant(0, buffer.dtype, buffer.shape)
    return finish(b, result), finish(b, small, 1)


@lowers(aten.log_sigmoid_backward.default)
def _log_sigmoid_backward(b: Builder, grad: Value, x: Value, buffer: Value) -> Value:
    dtype = opmath(b.out[0].dtype)
    return finish(b, b.multiply(b.convert(grad, dtype), b.logistic(b.negate(b.convert(x, dtype)))))


def _one_sixth(b: Builder, x: Value) -> Value:
    return b.constant(1 / 6, x.dtype)


@arithmetic(aten.hardsigmoid.default)
def hardsigmoid(b: Builder, x: Value) -> Value:
    return b.divide(b.clamp(0.0, b.add(x, 3.0), 6.0), 6.0)


@arithmetic(aten.hardsigmoid_backward.default)
def _hardsigmoid_backward(b: Builder, grad: Value, x: Value) -> Value:
    inside = b.and_(b.compare(x, -3.0, "GT"), b.compare(x, 3.0, "LT"))
    return b.select(inside, b.multiply(grad, _one_sixth(b, x)), 0.0)


@arithmetic(aten.hardswish.default)
def _hardswish(b: Builder, x: Value) -> Value:
    return b.divide(b.multiply(x, b.clamp(0.0, b.add(x, 3.0), 6.0)), 6.0)


@arithmetic(aten.hardswish_backward.default)
def _hardswish_backward(b: Builder, grad: Value, x: Value) -> Value:
    middle = b.multiply(grad, b.add(b.divide(x, 3.0), 0.5))
    upper = b.select(b.compare(x, 3.0, "GE"), grad, middle)
    return b.select(b.compare(x, -3.0, "LE"), 0.0, upper)


# -- gelu ---------------------------------------------------------------------------------------------------


@lowers(aten.gelu.default)
def _gelu(b: Builder, x: Value, *, approximate: str) -> Value:
    return finish(b, gelu(b, operand(b, x, opmath(x.dtype)), approximate))


def gelu(b: Builder, x: Value, approximate: str) -> Value:
    if approximate == "tanh":
        inner = b.multiply(b.add(x, b.multiply(b.multiply(b.multiply(x, x), x), _GELU_CUBIC)), _GELU_SCALE)
        return b.multiply(b.multiply(x, 0.5), b.add(1.0, b.tanh(inner)))
    return b.multiply(b.multiply(x, 0.5), b.add(1.0, b.erf(b.multiply(x, math.sqrt(0.5)))))


@lowers(aten.gelu_backward.default)
def _gelu_backward(b: Builder, grad: Value, x: Value, *, approximate: str) -> Value:
    dtype = opmath(b.out[0].dtype)
    grad, x = b.convert(grad, dtype), b.convert(x, dtype)
    square = b.multiply(x, x)
    if approximate == "tanh":
        tanh = b.tanh(b.multiply(b.add(x, b.multiply(b.multiply(square, x), _GELU_CUBIC)), _GELU_SCALE))
        inner = b.multiply(b.add(1.0, b.multiply(square, 3 * _GELU_CUBIC)), _GELU_SCALE)
        slope = b.multiply(b.multiply(x, 0.5), b.multiply(b.subtract(1.0, b.multiply(tanh, tanh)), inner))
        value = b.multiply(b.add(1.0, tanh), 0.5)
    else:
        value = b.multiply(b.add(1.0, b.erf(b.multiply(x, math.sqrt(0.5)))), 0.5)
        slope = b.multiply(x, b.multiply(b.exponential(b.multiply(square, -0.5)), 1 / math.sqrt(2 * math.pi)))
    return finish(b, b.multiply(grad, b.add(value, slope)))


# -- softplus and relatives ----------------------------------------------------------------------------------------


@arithmetic(aten.softplus.default)
def _softplus(b: Builder, x: Value, beta: Value, threshold: Value) -> Value:
    scaled = b.multiply(x, beta)
    soft = b.divide(b.log_plus_one(b.exponential(scaled)), beta)
    return b.select(b.compare(scaled, threshold, "GT"), x, soft)


@arithmetic(aten.softplus_backward.default)
def _softplus_backward(b: Builder, grad: Value, x: Value, beta: Value, threshold: Value) -> Value:
    scaled = b.multiply(x, beta)
    return b.select(b.compare(scaled, threshold, "GT"), grad, b.multiply(grad, b.logistic(scaled)))


def _softplus_of(b: Builder, x: Value) -> Value:
    """log(1 + exp(x)) without overflow."""
    return b.add(b.maximum(x, 0.0), b.log_plus_one(b.exponential(b.negate(b.abs(x)))))


@arithmetic(aten.mish.default)
def _mish(b: Builder, x: Value) -> Value:
    return b.multiply(x, b.tanh(_softplus_of(b, x)))


@arithmetic(aten.mish_backward.default)
def _mish_backward(b: Builder, grad: Value, x: Value) -> Value:
    tanh = b.tanh(_softplus_of(b, x))
    slope = b.multiply(b.multiply(x, b.logistic(x)), b.subtract(1.0, b.multiply(tanh, tanh)))
    return b.multiply(grad, b.add(tanh, slope))


@arithmetic(aten.softshrink.default)
def _softshrink(b: Builder, x: Value, bound: Value) -> Value:
    shrunk = b.select(b.compare(x, b.negate(bound), "LT"), b.add(x, bound), b.multiply(x, 0.0))
    return b.select(b.compare(x, bound, "GT"), b.subtract(x, bound), shrunk)


def _beyond(b: Builder, x: Value, bound: Value) -> Value:
    return b.or_(b.compare(x, b.negate(bound), "LT"), b.compare(x, bound, "GT"))


@arithmetic(aten.hardshrink.default)
def _hardshrink(b: Builder, x: Value, bound: Value) -> Value:
    return b.select(b.or_(_beyond(b, x, bound), b.is_nan(x)), x, 0.0)


@arithmetic(aten.softshrink_backward.default, aten.hardshrink_backward.default)
def _shrink_backward(b: Builder, grad: Value, x: Value, bound: Value) -> Value:
    return b.select(_beyond(b, x, bound), grad, 0.0)


# -- gated ------------------------------------------------------------------------------------------------------------


def _halves(b: Builder, x: Value, dim: int) -> tuple[Value, Value]:
    half = x.shape[dim] // 2
    return b.slice_dim(x, dim, 0, half), b.slice_dim(x, dim, half, 2 * half)


@lowers(aten.glu.default)
def _glu(b: Builder, x: Value, dim: int) -> Value:
    value, gate = _halves(b, b.convert(x, opmath(x.dtype)), dim % x.ndim)
    return finish(b, b.multiply(value, b.logistic(gate)))


@lowers(aten.glu_backward.default)
def _glu_backward(b: Builder, grad: Value, x: Value, dim: int) -> Value:
    dtype, dim = opmath(x.dtype), dim % x.ndim
    value, gate = _halves(b, b.convert(x, dtype), dim)
    grad_value = b.multiply(b.convert(grad, dtype), b.logistic(gate))
    grad_gate = b.multiply(b.multiply(grad_value, value), b.subtract(1.0, b.logistic(gate)))
    return finish(b, b.concatenate([grad_value, grad_gate], dim))
