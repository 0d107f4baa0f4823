# SPDX-License-Identifier: Apache-2.0
"""Softmax, its logarithm and their gradients."""

from __future__ import annotations

import math

import pytest
import torch
from case import FLOATS, LAYOUTS, Case, check, parametrize, sample, special

aten = torch.ops.aten

FULL, HALF = FLOATS[:2], FLOATS[2:]


def block(dtype: torch.dtype) -> torch.Tensor:
    return sample(3, 5, 4, dtype=dtype)


def masked(dtype: torch.dtype) -> torch.Tensor:
    """Row 0 partly masked, row 1 wholly."""
    x = sample(3, 6, dtype=dtype)
    x[0, :3] = -math.inf
    x[1] = -math.inf
    return x


def large(dtype: torch.dtype) -> torch.Tensor:
    """Enough for the host kernel; a row with every special value, and one of -inf."""
    x = sample(5, 2**18, dtype=dtype)
    x[0, :5] = torch.tensor([0.0, -0.0, math.inf, -math.inf, math.nan])
    x[1] = -math.inf
    x[2, ::2] = -math.inf
    return x


def on(make, op, *args, dtypes=FULL, id="", layouts=(), **options) -> Case:
    return Case(op, lambda dtype: ((make(dtype), *args), {}), dtypes, id, layouts=layouts, **options)


def backward(op, forward, dim, dtypes=FULL, id="", **options) -> Case:
    def make(dtype):
        return (sample(3, 5, 4, dtype=dtype, seed=1), forward(block(dtype), dim), dim, dtype), {}

    return Case(op, make, dtypes, id, layouts=(), **options)


CLOSE = {"rtol": 2e-2, "atol": 1e-2}
CASES = [
    *(on(block, op, 1, False, layouts=LAYOUTS) for op in (aten._softmax.default, aten._log_softmax.default)),
    *(
        on(block, op, 1, False, dtypes=HALF, id="half", **CLOSE)
        for op in (aten._softmax.default, aten._log_softmax.default)
    ),
    *(on(special, op, 1, False, id="special") for op in (aten._softmax.default, aten._log_softmax.default)),
    *(on(large, aten._log_softmax.default, dim, False, dtypes=FULL[:1], id=f"large{dim}") for dim in (-1, 0)),
    *(on(masked, op, 1, False, id="masked") for op in (aten._softmax.default, aten._log_softmax.default)),
    *(
        on(lambda d: sample(dtype=d), op, 0, False, id="0-dim")
        for op in (aten._softmax.default, aten._log_softmax.default)
    ),
    *(on(block, op, -1) for op in (aten.softmax.int, aten.log_softmax.int)),
    *(
        on(block, op, 0, torch.float32, dtypes=(*HALF, torch.int64), id="dtype")
        for op in (aten.softmax.int, aten.log_softmax.int)
    ),
    on(masked, aten._safe_softmax.default, 1),
    on(masked, aten._safe_softmax.default, 1, dtypes=HALF, id="half", **CLOSE),
    backward(aten._softmax_backward_data.default, torch.softmax, 1),
    backward(aten._softmax_backward_data.default, torch.softmax, -1, dtypes=HALF, id="half", **CLOSE),
    backward(aten._log_softmax_backward_data.default, torch.log_softmax, 1),
    backward(aten._log_softmax_backward_data.default, torch.log_softmax, -1, dtypes=HALF, id="half", **CLOSE),
]


@parametrize(CASES)
def test_softmax(case, dtype, variant):
    check(case, dtype, variant)


@pytest.mark.parametrize("function", (torch.softmax, torch.log_softmax))
def test_gradients(function):
    x = block(torch.float32)
    grad = sample(3, 5, 4, seed=1)
    gradients = []
    for device in ("cpu", "neuron"):
        leaf = x.to(device, copy=True).requires_grad_()
        function(leaf, 1).backward(grad.to(device))
        gradients.append(leaf.grad.cpu())
    torch.testing.assert_close(gradients[1], gradients[0])
