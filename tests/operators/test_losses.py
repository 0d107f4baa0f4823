# SPDX-License-Identifier: Apache-2.0
"""Losses and their gradients."""

from __future__ import annotations

import math

import pytest
import torch
from case import LAYOUTS, Case, check, parametrize, sample

aten = torch.ops.aten

DTYPES = (torch.float32, torch.bfloat16)
CLOSE = {"rtol": 2e-2, "atol": 2e-2}
EXACT = {"rtol": None, "atol": None}
REDUCTIONS = {0: "none", 1: "mean", 2: "sum"}


def loss_cases(name: str, *parameters, make=None, id="") -> list[Case]:
    """`name` and `name_backward` with every reduction."""
    make = make or (lambda dtype: (sample(3, 5, dtype=dtype), sample(3, 5, dtype=dtype, seed=1)))
    cases = []
    for reduction, label in REDUCTIONS.items():

        def forward(dtype, reduction=reduction):
            return (*make(dtype), reduction, *parameters), {}

        def backward(dtype, reduction=reduction):
            grad = sample(*((3, 5) if reduction == 0 else ()), dtype=dtype, seed=2)
            return (grad, *make(dtype), reduction, *parameters), {}

        layouts = LAYOUTS if reduction == 0 and not id else ()
        for suffix, arguments in (("", forward), ("_backward", backward)):
            op = getattr(aten, name + suffix, None)
            if op is not None:
                for dtype in DTYPES:
                    closeness = EXACT if dtype == torch.float32 else CLOSE
                    cases.append(
                        Case(op.default, arguments, (dtype,), f"{id}{label}", layouts, strides=False, **closeness)
                    )
    return cases


def probabilities(dtype, weighted: bool):
    """Exact zeros and ones among them, where the logarithms are bounded."""
    x, target = (sample(3, 5, seed=seed).sigmoid() for seed in (0, 1))
    x[0, :3] = torch.tensor([0.0, 1.0, 0.0])
    target[0, 2] = 0
    return x.to(dtype), target.to(dtype), sample(3, 5, dtype=dtype, seed=3, low=0) if weighted else None


def logits(dtype, weight: bool, pos_weight: bool):
    x, target = sample(3, 5, dtype=dtype, low=-40, high=40), sample(3, 5, seed=1).sigmoid().to(dtype)
    weights = (
        sample(3, 5, dtype=dtype, seed=3, low=0) if weight else None,
        sample(5, dtype=dtype, seed=4, low=0) if pos_weight else None,
    )
    return x, target, *weights


ELEMENTWISE = [
    *loss_cases("mse_loss"),
    *(case for beta in (1.0, 0.3, 0.0) for case in loss_cases("smooth_l1_loss", beta, id=f"{beta}-")),
    *(case for delta in (1.0, 0.3) for case in loss_cases("huber_loss", delta, id=f"{delta}-")),
    *loss_cases("soft_margin_loss", make=lambda d: (sample(3, 5, dtype=d), sample(3, 5, dtype=d, seed=1).sign())),
]


@parametrize(ELEMENTWISE)
def test_elementwise_losses(case, dtype, variant):
    check(case, dtype, variant)


BINARY = [
    case
    for name, make, labels in (
        *(("binary_cross_entropy", lambda d, w=w: probabilities(d, w), f"{w}-") for w in (False, True)),
        *(
            ("binary_cross_entropy_with_logits", lambda d, w=w, p=p: logits(d, w, p), f"{w}-{p}-")
            for w in (False, True)
            for p in (False, True)
        ),
    )
    for case in loss_cases(name, make=make, id=labels)
]


@parametrize(BINARY)
def test_binary_cross_entropy(case, dtype, variant):
    check(case, dtype, variant)


def nll_case(shape, weighted: bool, reduction: int, ignore_index: int, backward: bool, dtypes=DTYPES[:1]) -> Case:
    dim = min(1, len(shape) - 1)
    forward = aten.nll_loss2d_forward if len(shape) == 4 else aten.nll_loss_forward
    target_shape = [n for d, n in enumerate(shape) if d != dim]

    def make(dtype):
        x = sample(*shape, dtype=dtype).log_softmax(dim)
        target = sample(*target_shape, low=0, high=shape[dim]).long()
        weight = sample(shape[dim], dtype=dtype, low=0, seed=1) if weighted else None
        arguments = (x, target, weight, reduction, ignore_index)
        if not backward:
            return arguments, {}
        grad = sample(*(target_shape if reduction == 0 else ()), dtype=dtype, seed=2)
        return (grad, *arguments, forward.default(*arguments)[1]), {}

    names = (aten.nll_loss2d_backward if len(shape) == 4 else aten.nll_loss_backward) if backward else forward
    label = f"{len(shape)}-D-{'weighted-' if weighted else ''}{REDUCTIONS[reduction]}-{ignore_index}"
    return Case(names.default, make, dtypes, label, layouts=(), strides=False)


NLL = [
    nll_case(shape, weighted, reduction, ignore_index, backward)
    for shape in ((6, 4), (4,), (2, 4, 3, 2))
    for weighted in (False, True)
    for reduction in REDUCTIONS
    for ignore_index in (-100, 2)
    for backward in (False, True)
]


@parametrize(NLL)
def test_nll_loss(case, dtype, variant):
    check(case, dtype, variant)


def gradients(loss, *tensors: torch.Tensor, device: str) -> list[torch.Tensor]:
    """The loss and the gradient of the first tensor."""
    leaf = tensors[0].to(device, copy=True).requires_grad_()
    value = loss(leaf, *(t.to(device) for t in tensors[1:]))
    value.backward()
    return [value.detach().cpu(), leaf.grad.cpu()]


@pytest.mark.parametrize("smoothing", (0.0, 0.1))
@pytest.mark.parametrize("dtype", DTYPES)
def test_cross_entropy_of_a_language_model(dtype, smoothing):
    """Ignored tokens, and one that the model holds impossible."""
    x = sample(12, 50, dtype=dtype)
    target = torch.arange(12) * 4
    target[3:5] = -100
    x[3] = -math.inf

    def loss(x, target):
        return torch.nn.functional.cross_entropy(
            x[[0, 1, 2, *range(5, 12)]] if smoothing else x,
            target[[0, 1, 2, *range(5, 12)]] if smoothing else target,
            label_smoothing=smoothing,
        )

    expected, actual = (gradients(loss, x, target, device=device) for device in ("cpu", "neuron"))
    tolerances = {} if dtype == torch.float32 else CLOSE
    torch.testing.assert_close(actual, expected, equal_nan=True, **tolerances)


COMPOSITES = {
    "mse": torch.nn.functional.mse_loss,
    "l1": torch.nn.functional.l1_loss,
    "smooth_l1": torch.nn.functional.smooth_l1_loss,
    "huber": torch.nn.functional.huber_loss,
    "kl_div": lambda x, y: torch.nn.functional.kl_div(x.log_softmax(1), y.softmax(1), reduction="batchmean"),
    "bce_with_logits": lambda x, y: torch.nn.functional.binary_cross_entropy_with_logits(x, y.sigmoid()),
    "cosine_embedding": lambda x, y: torch.nn.functional.cosine_embedding_loss(x, y, torch.ones(3, device=x.device)),
    "cosine_similarity": lambda x, y: torch.nn.functional.cosine_similarity(x, y).sum(),
    "soft_target_cross_entropy": lambda x, y: torch.nn.functional.cross_entropy(x, y.softmax(1)),
    "margin_ranking": lambda x, y: torch.nn.functional.margin_ranking_loss(x, y, torch.ones_like(x)),
    "pairwise_distance": lambda x, y: torch.nn.functional.pairwise_distance(x, y).sum(),
    "triplet_margin": lambda x, y: torch.nn.functional.triplet_margin_loss(x, y, y.flip(0)),
    "poisson_nll": lambda x, y: torch.nn.functional.poisson_nll_loss(x, y.abs()),
    "gaussian_nll": lambda x, y: torch.nn.functional.gaussian_nll_loss(x, y, torch.ones_like(x)),
}


@pytest.mark.parametrize("name", COMPOSITES)
def test_gradients(name):
    x, y = sample(3, 5), sample(3, 5, seed=1)
    expected, actual = (gradients(COMPOSITES[name], x, y, device=device) for device in ("cpu", "neuron"))
    torch.testing.assert_close(actual, expected)


def test_a_class_out_of_range_is_an_error():
    x = torch.randn(3, 4, device="neuron")
    with pytest.raises(IndexError, match="index 4 is out of bounds"):
        torch.nn.functional.nll_loss(x, torch.tensor([0, 1, 4], device="neuron"))
        torch.accelerator.synchronize()
