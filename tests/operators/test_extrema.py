# SPDX-License-Identifier: Apache-2.0
"""Largest and smallest elements, and their indices."""

from __future__ import annotations

import math

import pytest
import torch
from case import ALL, FLOATS, LAYOUTS, NUMBERS, Case, check, parametrize, sample, special

aten = torch.ops.aten


def ties(dtype: torch.dtype) -> torch.Tensor:
    """Shape (3, 4, 5), every value several times."""
    return sample(3, 4, 5, dtype=dtype, low=-2, high=3).to(torch.float32).floor().to(dtype)


def on(make, op, *args, dtypes=FLOATS[:2], id="", layouts=(), **kwargs) -> Case:
    return Case(op, lambda dtype: ((make(dtype), *args), kwargs), dtypes, id, layouts=layouts)


CASES = [
    *(on(ties, op.default, dtypes=ALL) for op in (aten.max, aten.min)),
    *(on(ties, op.dim, 1, dtypes=ALL, layouts=LAYOUTS) for op in (aten.max, aten.min)),
    *(on(ties, op.dim, -1, True, id="keepdim") for op in (aten.max, aten.min)),
    *(on(special, op.dim, d, dtypes=FLOATS, id=f"special-{d}") for op in (aten.max, aten.min) for d in (0, 1)),
    *(on(ties, op.default, [0, 2], dtypes=ALL) for op in (aten.amax, aten.amin)),
    *(on(special, op.default, [1], dtypes=FLOATS, id="special") for op in (aten.amax, aten.amin)),
    *(on(ties, op.default, 1, True, dtypes=NUMBERS) for op in (aten.argmax, aten.argmin)),
    *(on(ties, op.default, None, dtypes=NUMBERS, id="all") for op in (aten.argmax, aten.argmin)),
    *(on(special, op.default, 0, dtypes=FLOATS, id="special") for op in (aten.argmax, aten.argmin)),
    on(ties, aten.aminmax.default, dim=1, dtypes=ALL),
    on(special, aten.aminmax.default, keepdim=True, id="special"),
    *(on(lambda d: sample(dtype=d), op.dim, 0, id="0-dim") for op in (aten.max, aten.min)),
    *(on(lambda d: sample(0, 3, dtype=d), op.dim, 1, id="empty") for op in (aten.max, aten.min)),
    *(on(lambda d: sample(0, 3, dtype=d), op.default, [1], id="empty") for op in (aten.amax, aten.amin)),
]


@parametrize(CASES)
def test_extrema(case, dtype, variant):
    check(case, dtype, variant)


@pytest.mark.parametrize("dim", (0, 1))
@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16))
def test_large_reductions_keep_nan(dtype, dim):
    """Reductions of this size take another way through XLA than those of a few elements."""
    x = sample(512, 300, dtype=dtype)
    x[7, 11] = math.nan
    for op in (torch.amax, torch.amin, torch.argmax, torch.argmin):
        torch.testing.assert_close(op(x.to("neuron"), dim).cpu(), op(x, dim), equal_nan=True)
