# SPDX-License-Identifier: Apache-2.0
"""Cumulative sums, products, extrema and log-sum-exps."""

from __future__ import annotations

import torch
from case import FLOATS, INTEGERS, LAYOUTS, Case, check, parametrize, sample, special

aten = torch.ops.aten

HALF = FLOATS[2:]
DTYPES = (*FLOATS[:2], *INTEGERS)


def on(make, op, *args, dtypes=DTYPES, id="", layouts=(), rtol=None, atol=None, **kwargs) -> Case:
    return Case(op, lambda dtype: ((make(dtype), *args), kwargs), dtypes, id, layouts=layouts, rtol=rtol, atol=atol)


def block(dtype: torch.dtype) -> torch.Tensor:
    return sample(3, 5, 4, dtype=dtype)


def long(dtype: torch.dtype) -> torch.Tensor:
    """Long enough to be scanned in blocks, and no multiple of their size."""
    return sample(2, 1100, 3, dtype=dtype)


EXTREMA = (aten.cummax.default, aten.cummin.default)
CASES = [
    on(block, aten.cumsum.default, 1, layouts=LAYOUTS),
    on(block, aten.cumsum.default, -1, dtypes=(torch.bool,), id="bool"),
    on(block, aten.cumsum.default, 0, dtypes=HALF, id="half", rtol=1e-2, atol=5e-2),
    on(long, aten.cumsum.default, 1, dtypes=(torch.float32, torch.int64), id="long", rtol=1e-5, atol=1e-3),
    on(block, aten.cumsum.default, 1, dtypes=(torch.int8,), dtype=torch.float32, id="dtype"),
    on(special, aten.cumsum.default, 1, dtypes=(torch.float32,), id="special"),
    on(block, aten.cumprod.default, 1),
    on(block, aten.cumprod.default, 1, dtypes=HALF, id="half", rtol=2e-2, atol=5e-2),
    on(special, aten.cumprod.default, 0, dtypes=(torch.float32,), id="special"),
    on(block, aten.logcumsumexp.default, 1, dtypes=FLOATS[:2]),
    on(long, aten.logcumsumexp.default, 1, dtypes=FLOATS[:1], id="long", rtol=1e-5, atol=1e-5),
    on(special, aten.logcumsumexp.default, 1, dtypes=FLOATS[:1], id="special"),
    *(on(block, op, 1, dtypes=(*DTYPES, torch.bool, *HALF)) for op in EXTREMA),
    *(on(long, op, 1, dtypes=(torch.int8, torch.float32), id="long") for op in EXTREMA),
    *(on(special, op, d, dtypes=FLOATS, id=f"special-{d}") for op in EXTREMA for d in (0, 1)),
    *(
        on(make, op, 0, dtypes=(torch.float32,), id=name)
        for op in (aten.cumsum.default, aten.cumprod.default, *EXTREMA)
        for name, make in (("0-dim", lambda d: sample(dtype=d)), ("empty", lambda d: sample(0, 3, dtype=d)))
    ),
]


@parametrize(CASES)
def test_cumulative(case, dtype, variant):
    check(case, dtype, variant)
