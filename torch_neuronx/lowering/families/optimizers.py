# SPDX-License-Identifier: Apache-2.0
"""The fused optimizers: one program that updates all parameters of a group.

The hyperparameters that training keeps (betas, momentum, decay) are part of the program, so that
1 - beta is exact to the last digit. The learning rate is an operand.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from ...stablehlo import Builder, Value
from ..pointwise import Operand
from ..promotion import opmath
from ..registry import lowers

aten = torch.ops.aten


class _Step(NamedTuple):
    """What all parameters of a group share. grad_scale: gradients are divided by it (autocast);
    found_inf: 1 where a gradient was infinite, then nothing changes."""

    lr: Operand
    weight_decay: float
    maximize: bool
    grad_scale: Value | None
    found_inf: Value | None


def _unscaled(b: Builder, grad: Value, step: _Step) -> Value:
    return grad if step.grad_scale is None else b.divide(grad, b.convert(step.grad_scale, grad.dtype))


def _unless_infinite(b: Builder, new: Value, old: Value, step: _Step) -> Value:
    """`new` rounded to the dtype of `old`; `old` itself when the step is skipped."""
    new = b.convert(new, old.dtype)
    return new if step.found_inf is None else b.select(b.compare(step.found_inf, 1, "EQ"), old, new)


def _bias_correction(b: Builder, beta: float, count: Value) -> Value:
    """1 - beta^count, without the cancellation."""
    if beta == 0:
        return b.constant(1, count.dtype)
    return b.negate(b.exponential_minus_one(b.multiply(count, math.log(beta))))


def _adam(
    b: Builder,
    tensors: Sequence[Any],
    count: Value,
    betas: tuple[float, float],
    eps: float,
    decoupled: bool,
    step: _Step,
) -> list[Any]:
    """One parameter: (parameter, gradient, average, average of squares, largest average of squares or None)."""
    dtype = opmath(tensors[0].dtype)
    wide: list[Any] = [None if t is None else b.convert(t, dtype) for t in tensors]
    parameter, raw, average, squares, largest = wide
    lr, count = b.value(step.lr, dtype), b.convert(count, dtype)
    beta1, beta2 = betas
    unscaled = _unscaled(b, raw, step)
    grad = b.negate(unscaled) if step.maximize else unscaled
    if step.weight_decay and decoupled:
        parameter = b.subtract(parameter, b.multiply(b.multiply(lr, step.weight_decay), parameter))
    elif step.weight_decay:
        grad = b.add(grad, b.multiply(parameter, step.weight_decay))
    average = b.add(average, b.multiply(b.subtract(grad, average), 1 - beta1))
    squares = b.add(b.multiply(squares, beta2), b.multiply(b.multiply(grad, grad), 1 - beta2))
    if largest is not None:
        largest = b.maximum(largest, squares)
    root = b.sqrt(squares if largest is None else largest)
    root = b.add(b.divide(root, b.sqrt(_bias_correction(b, beta2, count))), eps)
    rate = b.divide(lr, _bias_correction(b, beta1, count))
    parameter = b.subtract(parameter, b.divide(b.multiply(average, rate), root))
    updated = [parameter, unscaled, average, squares, largest]
    return [
        None if old is None else _unless_infinite(b, new, old, step) for new, old in zip(updated, tensors, strict=True)
    ]


def _fused_adam(decoupled: bool):
    def rule(
        b: Builder,
        parameters: list[Value],
        grads: list[Value],
        averages: list[Value],
        squares: list[Value],
        largest: list[Value],
        counts: list[Value],
        *,
        lr: Operand,
        beta1: float,
        beta2: float,
        weight_decay: float,
        eps: float,
        amsgrad: bool,
        maximize: bool,
        grad_scale: Value | None = None,
        found_inf: Value | None = None,
    ) -> list[Value]:
        step = _Step(lr, weight_decay, maximize, grad_scale, found_inf)
        bounds = largest if amsgrad else [None] * len(parameters)
        results = [
            _adam(b, tensors, count, (beta1, beta2), eps, decoupled, step)
            for *tensors, count in zip(parameters, grads, averages, squares, bounds, counts, strict=True)
        ]
        columns = [list(column) for column in zip(*results, strict=True)]
        return [*columns[0], *columns[1], *columns[2], *columns[3], *(columns[4] if amsgrad else largest)]

    return rule


for _packet, _decoupled in ((aten._fused_adam, False), (aten._fused_adamw, True)):
    lowers(_packet.default, _packet.tensor_lr, static=("beta1", "beta2", "weight_decay", "eps"))(
        _fused_adam(_decoupled)
    )


@lowers(aten._fused_sgd.default, aten._fused_sgd.tensor_lr, static=("weight_decay", "momentum", "dampening"))
def _fused_sgd(
    b: Builder,
    parameters: list[Value],
    grads: list[Value],
    buffers: list[Value],
    *,
    weight_decay: float,
    momentum: float,
    lr: Operand,
    dampening: float,
    nesterov: bool,
    maximize: bool,
    is_first_step: bool,
    grad_scale: Value | None = None,
    found_inf: Value | None = None,
) -> list[Value]:
    step = _Step(lr, weight_decay, maximize, grad_scale, found_inf)
    new_parameters, new_grads, new_buffers = [], [], []
    for index, (parameter, raw) in enumerate(zip(parameters, grads, strict=True)):
        dtype = opmath(parameter.dtype)
        unscaled = _unscaled(b, b.convert(raw, dtype), step)
        wide = b.convert(parameter, dtype)
        grad = b.negate(unscaled) if maximize else unscaled
        if weight_decay:
            grad = b.add(grad, b.multiply(wide, weight_decay))
        if buffers:
            buffer = grad
            if not is_first_step:
                kept = b.multiply(b.convert(buffers[index], dtype), momentum)
                buffer = b.add(kept, b.multiply(grad, 1 - dampening))
            grad = b.add(grad, b.multiply(buffer, momentum)) if nesterov else buffer
            new_buffers.append(_unless_infinite(b, buffer, buffers[index], step))
        wide = b.subtract(wide, b.multiply(grad, b.value(lr, dtype)))
        new_parameters.append(_unless_infinite(b, wide, parameter, step))
        new_grads.append(_unless_infinite(b, unscaled, raw, step))
    return [*new_parameters, *new_grads, *new_buffers]


# PyTorch has meta kernels for some of these only. They return nothing and change no shape.
_LIBRARY = torch.library.Library("aten", "IMPL", "Meta")
for _name in ("_fused_adam_.tensor_lr", "_fused_adamw_.tensor_lr", "_fused_sgd_", "_fused_sgd_.tensor_lr"):
    if not torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{_name}", "Meta"):
        _LIBRARY.impl(_name, lambda *args, **kwargs: None)
