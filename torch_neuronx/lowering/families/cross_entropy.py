# SPDX-License-Identifier: Apache-2.0
"""Cross entropy of class indices as two operators, forward and backward: what training graphs hold instead of
log_softmax, nll_loss and their gradients (see torch_neuronx/dynamo/cross_entropy.py).

Between them they keep two numbers a sample. The pieces would keep the logarithms of all probabilities, a second
tensor as large as the logits, which for a vocabulary is the largest of the model.

Host kernels (see `Builder.composite`): `neuron.softmax_statistics` of float32 or bfloat16, along the last dimension;
`neuron.cross_entropy_gradient` of logits, their two statistics, the gradient of each sample's loss and its target.
"""

from __future__ import annotations

import torch

from ...stablehlo import Builder, Value
from ..indexing import take_along
from ..pointwise import finish
from ..promotion import opmath
from ..registry import LIBRARY, lowers
from .nll_loss import Samples, loss_of
from .softmax import LARGE

aten = torch.ops.aten

LIBRARY.define(
    "cross_entropy(Tensor logits, Tensor target, Tensor? weight, int reduction, int ignore_index) "
    "-> (Tensor loss, Tensor total_weight, Tensor largest, Tensor log_total)"
)
LIBRARY.define(
    "cross_entropy_backward(Tensor grad, Tensor logits, Tensor largest, Tensor log_total, Tensor target, "
    "Tensor? weight, int reduction, int ignore_index, Tensor total_weight, ScalarType dtype) -> Tensor"
)
operators = torch.ops.torch_neuronx


# -- by other operators: for shapes, and where a graph runs operator by operator ------------------


def _cross_entropy(logits, target, weight, reduction, ignore_index):
    logits = logits.to(opmath(logits.dtype))
    largest = logits.amax(1, keepdim=True)
    log_total = (logits - largest).exp().sum(1, keepdim=True).log()
    logarithms = (logits - largest) - log_total
    loss, total_weight = aten.nll_loss_forward(logarithms, target, weight, reduction, ignore_index)
    return loss, total_weight, largest, log_total


def _cross_entropy_backward(
    grad, logits, largest, log_total, target, weight, reduction, ignore_index, total_weight, dtype
):
    logarithms = (logits.to(opmath(logits.dtype)) - largest) - log_total
    step = aten.nll_loss_backward(grad, logarithms, target, weight, reduction, ignore_index, total_weight)
    return aten._log_softmax_backward_data(step, logarithms, 1, logarithms.dtype).to(dtype)


LIBRARY.impl("cross_entropy", _cross_entropy, "CompositeExplicitAutograd")
LIBRARY.impl("cross_entropy_backward", _cross_entropy_backward, "CompositeExplicitAutograd")


# -- as programs ----------------------------------------------------------------------------------


def _statistics(b: Builder, x: Value) -> tuple[Value, Value]:
    """Of each row the largest element, and the logarithm of the sum of exponentials of the distances to it."""
    dtype = opmath(x.dtype)

    def decomposition(x: Value) -> tuple[Value, Value]:
        x = b.convert(x, dtype)
        largest = b.reduce(x, [1], "maximum_number", keepdim=True)
        total = b.reduce(b.exponential(b.subtract(x, largest)), [1], "add", keepdim=True)
        return largest, b.log(total)

    if x.dtype not in (torch.float32, torch.bfloat16) or x.numel < LARGE:
        return decomposition(x)
    shape = (x.shape[0], 1)
    largest, log_total = b.composite("neuron.softmax_statistics", [x], [(shape, dtype)] * 2, decomposition)
    return largest, log_total


@lowers(operators.cross_entropy.default)
def cross_entropy(
    b: Builder, logits: Value, target: Value, weight: Value | None, reduction: int, ignore_index: int
) -> tuple[Value, ...]:
    samples = Samples(b, logits, target, weight, ignore_index)
    largest, log_total = _statistics(b, logits)
    picked = b.convert(take_along(b, logits, samples.index, 1), samples.dtype)
    picked = b.subtract(b.subtract(picked, largest), log_total)
    return *loss_of(b, samples, picked, reduction), largest, log_total


@lowers(operators.cross_entropy_backward.default)
def cross_entropy_backward(
    b: Builder,
    grad: Value,
    logits: Value,
    largest: Value,
    log_total: Value,
    target: Value,
    weight: Value | None,
    reduction: int,
    ignore_index: int,
    total_weight: Value,
    dtype: torch.dtype,
) -> Value:
    """One pass over the logits: (probability - is target) * gradient of the sample."""
    samples = Samples(b, logits, target, weight, ignore_index)
    step = samples.gradient(b, grad, reduction, total_weight)

    def decomposition(x: Value, largest: Value, log_total: Value, step: Value, index: Value) -> Value:
        x = b.convert(x, samples.dtype)
        share = b.multiply(b.exponential(b.subtract(b.subtract(x, largest), log_total)), step)
        return b.convert(b.select(samples.is_target(b, logits.shape), b.subtract(share, step), share), dtype)

    operands = [logits, largest, log_total, step, samples.index]
    if (logits.dtype, dtype) not in _KERNEL_TYPES or logits.numel < LARGE or samples.index.dtype != torch.int64:
        return finish(b, decomposition(*operands))
    # The logits are not needed any more, as a rule: for a vocabulary, a second tensor of their size is a lot.
    updated = 0 if logits.dtype == dtype else None
    types = [(logits.shape, dtype)]
    return b.composite("neuron.cross_entropy_gradient", operands, types, decomposition, updated=updated)[0]


# Of the logits and of their gradient.
_KERNEL_TYPES = (
    (torch.float32, torch.float32),
    (torch.bfloat16, torch.bfloat16),
    (torch.bfloat16, torch.float32),
)
