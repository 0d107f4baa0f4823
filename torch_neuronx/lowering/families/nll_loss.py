# SPDX-License-Identifier: Apache-2.0
"""Negative log likelihood of class indices.

The forward pass gathers one element a sample. The backward pass compares class numbers with the
target: the gradient is dense anyway, and a scatter would write it twice.
"""

from __future__ import annotations

import torch

from ...stablehlo import Builder, Value
from ..indexing import take_along, take_rows
from ..pointwise import finish
from ..promotion import opmath
from ..registry import lowers
from .losses import MEAN, NONE

aten = torch.ops.aten


class _Samples:
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

    def total_weight(self, b: Builder) -> Value:
        return b.reduce(self.weights, range(self.weights.ndim), "add")


@lowers(aten.nll_loss_forward.default, aten.nll_loss2d_forward.default)
def nll_loss_forward(
    b: Builder, x: Value, target: Value, weight: Value | None, reduction: int, ignore_index: int
) -> tuple[Value, Value]:
    samples = _Samples(b, x, target, weight, ignore_index)
    picked = b.convert(take_along(b, x, samples.index, samples.dim), samples.dtype)
    # Selected, not multiplied: an ignored sample may be infinite.
    loss = b.select(samples.counted, b.multiply(b.negate(picked), samples.weights), 0)
    total_weight = samples.total_weight(b)
    if reduction == NONE:
        loss = b.reshape(b.convert(loss, x.dtype), b.out[0].shape)
        return loss, finish(b, total_weight if x.ndim == 1 else b.constant(0, x.dtype), 1)
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
    samples = _Samples(b, x, target, weight, ignore_index)
    grad = b.convert(grad, samples.dtype)
    if reduction == MEAN:
        grad = b.divide(grad, b.convert(total_weight, samples.dtype))
    elif reduction == NONE:
        grad = b.reshape(grad, samples.weights.shape)
    step = b.select(samples.counted, b.multiply(b.negate(samples.weights), grad), 0)
    classes = b.iota(x.shape, samples.dim, samples.index.dtype)
    return finish(b, b.select(b.compare(classes, samples.index, "EQ"), step, 0))
