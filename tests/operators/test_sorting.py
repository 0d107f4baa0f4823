# SPDX-License-Identifier: Apache-2.0
"""Sorting, and what is found by sorting or searching."""

from __future__ import annotations

import math

import pytest
import torch
from case import FLOATS, INTEGERS, Case, check, parametrize, sample, special

aten = torch.ops.aten
EVERY = (*FLOATS, *INTEGERS, torch.bool)


def shuffled(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """No number twice."""
    order = torch.randperm(math.prod(shape), generator=torch.Generator().manual_seed(0))
    return (order - order.numel() // 2).reshape(shape).to(dtype)


def of(op, *args, make=special, dtypes=FLOATS[:1], id="", layouts=(), **kwargs) -> Case:
    return Case(op, lambda dtype: ((make(dtype), *args), kwargs), dtypes, id, layouts)


def on_shuffled(op, *args, shape=(4, 30), **kwargs) -> Case:
    return of(op, *args, make=lambda dtype: shuffled(*shape, dtype=dtype), **kwargs)


CASES = [
    Case(
        aten.sort.stable,
        lambda dtype: ((special(dtype),), {"stable": True, "dim": 1, "descending": False}),
        EVERY,
        layouts=("transposed", "sliced"),
    ),
    Case(
        aten.sort.stable,
        lambda dtype: ((special(dtype),), {"stable": True, "dim": 0, "descending": True}),
        EVERY,
        id="descending",
        layouts=(),
    ),
    on_shuffled(aten.sort.default, dtypes=(torch.float32, torch.int64)),
    on_shuffled(aten.sort.default, 0, True, shape=(3, 4, 5), id="first"),
    on_shuffled(aten.sort.default, shape=(), id="0-dim"),
    on_shuffled(aten.sort.default, shape=(2, 0), id="empty"),
    on_shuffled(aten.topk.default, 3, dtypes=(torch.float32, torch.int64, torch.bfloat16, torch.int8)),
    on_shuffled(aten.topk.default, 3, -1, False, id="smallest", dtypes=(torch.float32, torch.int32, torch.float16)),
    on_shuffled(aten.topk.default, 2, 1, shape=(3, 20, 2), id="middle", layouts=("transposed", "sliced")),
    on_shuffled(aten.topk.default, 20, id="many"),
    on_shuffled(aten.topk.default, 20, -1, False, id="many-smallest"),
    on_shuffled(aten.topk.default, 0, id="none"),
    on_shuffled(aten.topk.default, 1, shape=(), id="0-dim"),
    on_shuffled(aten.kthvalue.default, 7, dtypes=(torch.float32, torch.int64)),
    on_shuffled(aten.kthvalue.default, 2, 0, True, id="keepdim"),
    on_shuffled(aten.median.dim, 1, dtypes=(torch.float32, torch.int64, torch.bfloat16)),
    on_shuffled(aten.nanmedian.dim, 0, True),
    on_shuffled(aten.median.default, dtypes=(torch.float32, torch.int64)),
    on_shuffled(aten.median.default, shape=(0,), id="empty"),
    of(aten.median.default, id="nan"),
    of(aten.nanmedian.default, id="nan"),
]


@parametrize(CASES)
def test_sorting(case, dtype, variant):
    check(case, dtype, variant)


NAN, INF = math.nan, math.inf
ODD = torch.tensor(
    [[1.0, NAN, 2.0, INF, -INF, 0.5], [1.0, 5.0, 2.0, INF, -INF, 0.5], [NAN, 1.0, NAN, NAN, NAN, 2.0], [NAN] * 6]
)


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("k", [3, 6])
def test_topk_takes_nan_as_the_greatest(largest, sign, k):
    x = ODD[:2].copysign(torch.tensor(sign)) if sign < 0 else ODD[:2]
    expected = x.topk(k, largest=largest).values
    values, positions = x.to("neuron").topk(k, largest=largest)
    torch.testing.assert_close(values.cpu(), expected, equal_nan=True)
    torch.testing.assert_close(x.gather(1, positions.cpu()), expected, equal_nan=True)


@pytest.mark.parametrize("name", ["median", "nanmedian", "mode"])
@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("x", [ODD, sample(5, 9).round(), sample(3, 7, dtype=torch.int64)], ids=["odd", "ties", "int"])
def test_one_of_several_equal_elements(name, dim, x):
    """Which of them the index names is open; the value is not."""
    expected = getattr(x, name)(dim).values
    values, positions = getattr(x.to("neuron"), name)(dim)
    torch.testing.assert_close(values.cpu(), expected, equal_nan=True)
    torch.testing.assert_close(x.gather(dim, positions.cpu().unsqueeze(dim)).squeeze(dim), expected, equal_nan=True)


# -- searching -----------------------------------------------------------------------------------------


def ordered(count: int, dtype: torch.dtype) -> torch.Tensor:
    return (sample(count, seed=1) * 20).to(dtype).sort().values


def searched(op, count: int, id="", dtypes=(torch.float32, torch.int64), first=True, **kwargs) -> Case:
    def make(dtype):
        rows, values = ordered(count, dtype), (sample(3, 40) * 25).to(dtype)
        if count:
            values[0, : min(count, 40)] = rows[:40]
        return ((rows, values) if first else (values, rows)), kwargs

    return Case(op, make, dtypes, f"{count}{id}", ())


def membership(count: int, **kwargs) -> Case:
    make = lambda dtype: ((sample(5, 6, dtype=dtype) * 9, sample(count, dtype=dtype, seed=1) * 9), kwargs)  # noqa: E731
    return Case(aten.isin.Tensor_Tensor, make, (torch.int64, torch.float32), f"{count}{'-not' if kwargs else ''}", ())


SEARCHES = [
    searched(aten.searchsorted.Tensor, 0),
    searched(aten.searchsorted.Tensor, 5),
    searched(aten.searchsorted.Tensor, 5, "-right", right=True, out_int32=True),
    searched(aten.searchsorted.Tensor, 65, dtypes=(torch.float32, torch.int32)),
    searched(aten.searchsorted.Tensor, 200, "-right", side="right"),
    searched(aten.bucketize.Tensor, 7, first=False),
    searched(aten.bucketize.Tensor, 100, "-right", first=False, right=True),
    Case(
        aten.searchsorted.Tensor,
        lambda dtype: ((sample(3, 70), sample(3, 4, seed=1)), {"sorter": sample(3, 70).sort().indices}),
        id="sorter",
        layouts=(),
    ),
    Case(
        aten.bucketize.Tensor,
        lambda dtype: ((torch.tensor([NAN, INF, -INF, 0.0]), ordered(70, torch.float32)), {}),
        id="special",
        layouts=(),
    ),
    Case(
        aten.searchsorted.Scalar, lambda dtype: ((ordered(9, dtype), 2.5), {}), (torch.float32, torch.int64), layouts=()
    ),
    Case(aten.bucketize.Scalar, lambda dtype: ((3, ordered(9, dtype)), {}), (torch.float32, torch.int64), layouts=()),
    membership(1),
    membership(20, invert=True),
    membership(300),
    Case(aten.isin.Tensor_Scalar, lambda dtype: ((sample(9, dtype=dtype), 3), {}), (torch.int64,), layouts=()),
    Case(aten.isin.Scalar_Tensor, lambda dtype: ((3, sample(9, dtype=dtype)), {}), (torch.int64,), layouts=()),
    Case(
        aten.histc.default,
        lambda dtype: ((sample(200, dtype=dtype), 10), {}),
        (torch.float32, torch.float64),
        layouts=(),
    ),
    Case(aten.histc.default, lambda dtype: ((sample(200), 7, -1, 2), {}), id="range", layouts=()),
    Case(aten.histc.default, lambda dtype: ((torch.ones(5), 4), {}), id="constant", layouts=()),
]


@parametrize(SEARCHES)
def test_searching(case, dtype, variant):
    check(case, dtype, variant)
