# SPDX-License-Identifier: Apache-2.0
"""Negative log likelihood of class indices.

The forward pass gathers one element a sample. The backward pass compares class numbers with the
target: the gradient is dense anyway, and a scatter would write it twice.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ...stablehlo import Builder, Value
from ..indexing import take_along, take_rows
from ..pointwise import finish
from ..promotion import opmath
from ..registry import lowers
from .losses import MEAN, NONE

aten = torch.ops.aten


class Samples:
    """Input with a class dimension, and the target along it (kept with size 1)."""

    def __init__(self, b: Builder, x: Value, target: Value, weight: Value | None, ignore_index: int):
        self.dtype = opmath(x.dtype)
        self.dim = min(1, x.ndim - 1)
        shape = [1 if d == self.dim else n for d, n in enumerate(x.shape)]
        target = b.reshape(target, shape)
        self.counted = b.compare(target, ignore_index, "NE")
        self.index = b.check_index(b.select(self.counted, target, 0), x.shape[self.dim])
        if weight is None:
            weights = b.constant(1, self.dtype, shape)
        elif x.shape[self.dim] == 0:
            weights = b.constant(0, self.dtype, shape)
        else:
            weights = b.convert(take_rows(b, weight, self.index, 0), self.dtype)
        self.weights = b.select(self.counted, weights, 0)

    def is_target(self, b: Builder, shape: Sequence[int]) -> Value:
        """Whether an element of the input, whose shape this is, stands for its sample's target."""
        dtype = torch.int32 if shape[self.dim] < 2**31 else torch.int64
        return b.compare(b.iota(shape, self.dim, dtype), b.convert(self.index, dtype), "EQ")

    def gradient(self, b: Builder, grad: Value, reduction: int, total_weight: Value) -> Value:
        """What the loss's gradient `grad` makes of each sample's, but for its sign; 0 for an ignored sample."""
        grad = b.convert(grad, self.dtype)
        if reduction == MEAN:
            grad = b.divide(grad, b.convert(total_weight, self.dtype))
        elif reduction == NONE:
            grad = b.reshape(grad, self.weights.shape)
        return b.select(self.counted, b.multiply(self.weights, grad), 0)


@lowers(aten.nll_loss_forward.default, aten.nll_loss2d_forward.default)
def nll_loss_forward(
    b: Builder, x: Value, target: Value, weight: Value | None, reduction: int, ignore_index: int
) -> tuple[Value, Value]:
    samples = Samples(b, x, target, weight, ignore_index)
    picked = b.convert(take_along(b, x, samples.index, samples.dim), samples.dtype)
    return loss_of(b, samples, picked, reduction)


def loss_of(b: Builder, samples: Samples, picked: Value, reduction: int) -> tuple[Value, Value]:
    """Loss and total weight, from the logarithm of the probability of each sample's target."""
    # Selected, not multiplied: an ignored sample may be infinite.
    loss = b.select(samples.counted, b.multiply(b.negate(picked), samples.weights), 0)
    total_weight = b.reduce(samples.weights, range(samples.weights.ndim), "add")
    if reduction == NONE:
        loss = b.reshape(b.convert(loss, b.out[0].dtype), b.out[0].shape)
        return loss, finish(b, total_weight if samples.weights.ndim == 1 else b.constant(0, total_weight.dtype), 1)
    total = b.reduce(loss, range(loss.ndim), "add")
    return finish(b, b.divide(total, total_weight) if reduction == MEAN else total), finish(b, total_weight, 1)


@lowers(aten.nll_loss_backward.default, aten.nll_loss2d_backward.default)
def nll_loss_backward(
    b: Builder,
    grad: Value,
    x: Value,
    target: Value,
    weight: Value | None,
    reduction: int,
    ignore_index: int,
    total_weight: Value,
) -> Value:
    samples = Samples(b, x, target, weight, ignore_index)
    step = b.negate(samples.gradient(b, grad, reduction, total_weight))
    return finish(b, b.select(samples.is_target(b, x.shape), step, 0))
