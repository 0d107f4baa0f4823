# SPDX-License-Identifier: Apache-2.0
"""Elementwise losses with their reductions and gradients.

A loss is a function of input and target and its derivative by the input; the reduction (none,
mean, sum) and the scaling of gradients are the same for all.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from ...stablehlo import Builder, Value
from ..pointwise import Operand, finish
from ..promotion import opmath, result_type
from ..registry import lowers

aten = torch.ops.aten

NONE, MEAN, SUM = range(3)


def reduced(b: Builder, loss: Value, reduction: int) -> Value:
    """The loss of all elements, as `at::Reduction` has it; the mean over no elements is NaN."""
    if reduction == NONE:
        return finish(b, loss)
    total = b.reduce(loss, range(loss.ndim), "add")
    return finish(b, b.divide(total, loss.numel) if reduction == MEAN else total)


def scaled(b: Builder, grad: Value, derivative: Value, reduction: int, count: int) -> Value:
    """The gradient of the input, from that of the (reduced) loss."""
    grad = b.convert(grad, derivative.dtype)
    # Scaled before it is broadcast: one division instead of one an element.
    grad = b.divide(grad, max(count, 1)) if reduction == MEAN else grad
    return finish(b, b.multiply(derivative, grad))


def _common(b: Builder, *values: Operand) -> list[Value]:
    """The values in the compute dtype of the tensors among them."""
    dtype = opmath(result_type(*(v for v in values if isinstance(v, Value) and not v.wrapped)))
    return [b.value(v, dtype) for v in values]


Elementwise = Callable[..., Value]


def _loss(name: str, function: Elementwise, derivative: Elementwise) -> None:
    """Enters `name` and `name_backward`; both functions get input, target and the schema's float, if it has one."""

    @lowers(getattr(aten, name).default)
    def forward(b: Builder, x: Value, target: Value, reduction: int, *parameter: Operand) -> Value:
        return reduced(b, function(b, *_common(b, x, target, *parameter)), reduction)

    @lowers(getattr(aten, name + "_backward").default)
    def backward(b: Builder, grad: Value, x: Value, target: Value, reduction: int, *parameter: Operand) -> Value:
        values = _common(b, x, target, *parameter)
        count = torch.broadcast_shapes(x.shape, target.shape).numel()
        return scaled(b, grad, derivative(b, *values), reduction, count)


def _square(b: Builder, x: Value, target: Value) -> Value:
    difference = b.subtract(x, target)
    return b.multiply(difference, difference)


def _square_derivative(b: Builder, x: Value, target: Value) -> Value:
    return b.multiply(b.subtract(x, target), 2)


def _smooth_l1(b: Builder, x: Value, target: Value, beta: Value) -> Value:
    distance = b.abs(b.subtract(x, target))
    near = b.divide(b.multiply(b.multiply(distance, distance), 0.5), beta)
    return b.select(b.compare(distance, beta, "LT"), near, b.subtract(distance, b.multiply(beta, 0.5)))


def _smooth_l1_derivative(b: Builder, x: Value, target: Value, beta: Value) -> Value:
    difference = b.subtract(x, target)
    far = b.compare(b.abs(difference), beta, "GE")
    # At beta = 0 ATen's order of cases gives a zero distance the derivative -1.
    sign = b.select(b.compare(difference, b.negate(beta), "LE"), -1.0, b.constant(1, difference.dtype))
    return b.select(far, sign, b.divide(difference, beta))


def _huber(b: Builder, x: Value, target: Value, delta: Value) -> Value:
    distance = b.abs(b.subtract(x, target))
    near = b.multiply(b.multiply(distance, distance), 0.5)
    far = b.multiply(delta, b.subtract(distance, b.multiply(delta, 0.5)))
    return b.select(b.compare(distance, delta, "LE"), near, far)


def _huber_derivative(b: Builder, x: Value, target: Value, delta: Value) -> Value:
    difference = b.subtract(x, target)
    low = b.compare(difference, b.negate(delta), "LE")
    high = b.compare(difference, delta, "GE")
    return b.select(low, b.negate(delta), b.select(high, delta, difference))


def _soft_margin(b: Builder, x: Value, target: Value) -> Value:
    return b.log_plus_one(b.exponential(b.negate(b.multiply(x, target))))


def _soft_margin_derivative(b: Builder, x: Value, target: Value) -> Value:
    z = b.exponential(b.negate(b.multiply(x, target)))
    return b.negate(b.divide(b.multiply(target, z), b.add(z, 1)))


_loss("mse_loss", _square, _square_derivative)
_loss("smooth_l1_loss", _smooth_l1, _smooth_l1_derivative)
_loss("huber_loss", _huber, _huber_derivative)
_loss("soft_margin_loss", _soft_margin, _soft_margin_derivative)


# -- cross entropy of probabilities -----------------------------------------------------------------


def _weighted(b: Builder, loss: Value, weight: Value | None) -> Value:
    return loss if weight is None else b.multiply(loss, b.convert(weight, loss.dtype))


@lowers(aten.binary_cross_entropy.default)
def binary_cross_entropy(b: Builder, x: Value, target: Value, weight: Value | None, reduction: int) -> Value:
    x, target = _common(b, x, target)
    # PyTorch bounds the logarithms at -100, so that no loss is infinite.
    log_x = b.maximum(b.log(x), -100.0)
    log_rest = b.maximum(b.log_plus_one(b.negate(x)), -100.0)
    loss = b.subtract(b.multiply(b.subtract(target, 1.0), log_rest), b.multiply(target, log_x))
    return reduced(b, _weighted(b, loss, weight), reduction)


@lowers(aten.binary_cross_entropy_backward.default)
def binary_cross_entropy_backward(
    b: Builder, grad: Value, x: Value, target: Value, weight: Value | None, reduction: int
) -> Value:
    x, target = _common(b, x, target)
    variance = b.maximum(b.multiply(b.subtract(1.0, x), x), 1e-12)
    derivative = b.divide(b.subtract(x, target), variance)
    return scaled(b, grad, _weighted(b, derivative, weight), reduction, x.numel)


@lowers(aten.binary_cross_entropy_with_logits.default)
def binary_cross_entropy_with_logits(
    b: Builder, x: Value, target: Value, weight: Value | None, pos_weight: Value | None, reduction: int
) -> Value:
    x, target = _common(b, x, target)
    # log(sigmoid(x)) = min(x, 0) - log(1 + exp(-|x|))
    log_sigmoid = b.subtract(b.minimum(x, 0.0), b.log_plus_one(b.exponential(b.negate(b.abs(x)))))
    if pos_weight is not None:
        factor = b.add(b.multiply(b.subtract(b.convert(pos_weight, x.dtype), 1.0), target), 1.0)
        log_sigmoid = b.multiply(factor, log_sigmoid)
    loss = b.subtract(b.multiply(b.subtract(1.0, target), x), log_sigmoid)
    return reduced(b, _weighted(b, loss, weight), reduction)
