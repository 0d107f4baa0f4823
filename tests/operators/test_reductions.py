# SPDX-License-Identifier: Apache-2.0
"""Sums, products, logical reductions, statistics and norms."""

from __future__ import annotations

import math

import pytest
import torch
from case import ALL, COMPLEX, FLOATS, LAYOUTS, NUMBERS, Case, check, parametrize, sample, special

aten = torch.ops.aten

FLOATS_AND_COMPLEX = (*FLOATS, *COMPLEX)
TWO = FLOATS[:2]


def on_sample(op, *args, dtypes=TWO, shape=(3, 4, 5), id="", layouts=(), low=-4.0, high=4.0, **kwargs) -> Case:
    tolerances = {name: kwargs.pop(name) for name in ("rtol", "atol") if name in kwargs}
    make = lambda dtype: ((sample(*shape, dtype=dtype, low=low, high=high), *args), kwargs)  # noqa: E731
    return Case(op, make, dtypes, id, layouts=layouts, **tolerances)


def on_special(op, *args, dtypes=TWO, id="special", **kwargs) -> Case:
    return Case(op, lambda dtype: ((special(dtype), *args), kwargs), dtypes, id, layouts=())


SUMS = [
    on_sample(aten.sum.dim_IntList, [1], dtypes=(*ALL, *COMPLEX), layouts=LAYOUTS),
    on_sample(aten.sum.default, dtypes=(*ALL, *COMPLEX)),
    on_sample(aten.sum.dim_IntList, [0, -1], True, id="keepdim"),
    on_sample(aten.sum.dim_IntList, [], id="all"),
    on_sample(aten.sum.dim_IntList, [0], shape=(), id="0-dim"),
    on_sample(aten.sum.dim_IntList, [0], shape=(0, 3), id="empty"),
    on_sample(aten.sum.default, dtypes=(torch.int32, torch.bool), dtype=torch.float32, id="dtype"),
    on_special(aten.sum.dim_IntList, [0], dtypes=FLOATS),
    on_sample(aten.prod.dim_int, 1, dtypes=(*ALL, *COMPLEX), low=0.5, high=1.5),
    on_sample(aten.prod.default, dtypes=(torch.float32, torch.int64), low=0.5, high=1.5),
    on_sample(aten.prod.default, shape=(0,), id="empty"),
    on_sample(aten.mean.dim, [1], True, dtypes=FLOATS_AND_COMPLEX),
    on_sample(aten.mean.default, dtypes=FLOATS_AND_COMPLEX),
    on_sample(aten.mean.default, shape=(0,), id="empty"),
    on_sample(aten.mean.default, dtypes=(torch.int64,), dtype=torch.float32, id="dtype"),
    on_special(aten.nansum.default, [1], dtypes=(*FLOATS, torch.int32)),
    on_sample(aten.any.dim, 1, dtypes=ALL, low=-0.7, high=0.3),
    on_sample(aten.any.dims, [0, 2], low=-0.7, high=0.3, dtypes=ALL[-2:]),
    on_sample(aten.any.dims, [], id="no-dims"),
    on_special(aten.any.default),
    on_sample(aten.any.default, shape=(0,), id="empty"),
    on_sample(aten.all.dim, 1, True, dtypes=ALL),
    on_sample(aten.all.dims, None, dtypes=ALL[-2:]),
    on_sample(aten.all.default),
    on_sample(aten.all.default, shape=(0,), id="empty"),
    on_special(aten.count_nonzero.dim_IntList, [0], dtypes=ALL),
    on_special(aten.count_nonzero.default, None, dtypes=(torch.float32, torch.bool)),
    on_sample(aten.trace.default, shape=(4, 6), dtypes=NUMBERS),
]


@parametrize(SUMS)
def test_sums(case, dtype, variant):
    check(case, dtype, variant)


STATISTICS = [
    *(on_sample(op.correction, [1], dtypes=FLOATS_AND_COMPLEX) for op in (aten.var, aten.std)),
    *(on_sample(op.correction, None, keepdim=True) for op in (aten.var_mean, aten.std_mean)),
    *(on_sample(aten.var.correction, [0, 2], correction=c, id=f"correction-{c}") for c in (0, 1, 2.5)),
    on_sample(
        aten.var.correction,
        None,
        correction=1,
        shape=(5,),
        low=10000,
        high=10001,
        id="large-mean",
        rtol=1e-3,
        atol=1e-3,
    ),
    on_special(aten.std.correction, [1]),
]
NORMS = [
    *(on_sample(aten.linalg_vector_norm.default, p, [1], id=str(p)) for p in (0, 1, 2, 3, 0.5, math.inf, -math.inf)),
    on_sample(aten.linalg_vector_norm.default, dtypes=FLOATS_AND_COMPLEX),
    on_sample(aten.linalg_vector_norm.default, 2, None, True, dtype=torch.float32, dtypes=FLOATS[2:], id="dtype"),
    on_sample(aten.linalg_vector_norm.default, 2, [0], shape=(0, 3), id="empty"),
    on_special(aten.linalg_vector_norm.default, 1, [0]),
    on_sample(aten.norm.Scalar, 2),
    on_sample(aten.norm.ScalarOpt_dim, None, [0, 1]),
    on_sample(aten.norm.ScalarOpt_dtype, 1, dtype=torch.float64),
    Case(aten.dist.default, lambda d: ((sample(3, 4, dtype=d), sample(4, dtype=d, seed=1), 2), {}), TWO, layouts=()),
    *(on_sample(aten.renorm.default, p, 1, 3.0, id=str(p)) for p in (1, 2)),
    on_sample(aten.renorm.default, 2, 0, 3.0, dtypes=FLOATS[2:], id="half"),
    on_sample(aten.logsumexp.default, [1], dtypes=(*TWO, torch.int64)),
    on_sample(aten.logsumexp.default, [0, 2], True, dtypes=FLOATS[2:], id="half", rtol=2e-2, atol=2e-2),
    on_special(aten.logsumexp.default, [0]),
]


@pytest.mark.filterwarnings("ignore:.*degrees of freedom")
@parametrize([*STATISTICS, *NORMS])
def test_statistics(case, dtype, variant):
    check(case, dtype, variant)


def test_too_few_elements_for_a_variance():
    x = torch.tensor([3.0], device="neuron")
    with pytest.warns(UserWarning, match="degrees of freedom"):
        expected = x.cpu().var()
    torch.testing.assert_close(x.var().cpu(), expected, equal_nan=True)


@pytest.mark.parametrize("dtype", FLOATS[::2])
def test_long_sums_stay_exact(dtype):
    """A million elements: their rounding errors must not add up."""
    x = sample(1_000_000, dtype=dtype, low=0)
    expected = x.double().sum()
    torch.testing.assert_close(x.to("neuron").sum(dtype=torch.float32).cpu().double(), expected, rtol=1e-6, atol=0)
