# SPDX-License-Identifier: Apache-2.0
"""Reading and writing by index and under masks."""

from __future__ import annotations

import pytest
import torch
from case import Case, check, compare, parametrize, sample

import torch_neuronx

aten = torch.ops.aten
X = (3, 4, 5, 6)


def integers(limit: int, *shape: int, low: int = 0, dtype: torch.dtype = torch.int64, seed: int = 0) -> torch.Tensor:
    return torch.randint(low, limit, shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


INDICES = {
    "first": [integers(3, 2)],
    "negative": [None, integers(4, 7, low=-4)],
    "matrix": [None, integers(4, 2, 3)],
    "adjacent": [integers(3, 2), integers(4, 2, seed=1)],
    "apart": [integers(3, 2), None, integers(5, 2, seed=1)],
    "broadcast": [None, integers(4, 2, 1), integers(5, 3, low=-5, seed=1)],
    "int32": [None, integers(4, 2, 1, dtype=torch.int32), None, integers(6, 3, low=-6, seed=1)],
    "all": [integers(n, 2, seed=n) for n in X],
    "0-dim": [integers(3), None, integers(5, 2, 2)],
    "empty": [None, None, integers(5, 0)],
}
# Without repetition: which of several values for one place stays is undefined.
PLACES = {
    "first": [torch.tensor([2, 0])],
    "negative": [None, torch.tensor([3, -4, 1])],
    "apart": [torch.tensor([2, 0]), None, torch.tensor([1, 3])],
    "broadcast": [None, torch.tensor([2, 0]), torch.tensor([[1], [3]], dtype=torch.int32)],
    "all": [torch.tensor([[1], [0]]), torch.tensor([3, 1]), torch.tensor([0, 0]), torch.tensor(5)],
}


def of(op, *args, shape=X, dtypes=(torch.float32, torch.int64), id="", layouts=(), **kwargs) -> Case:
    return Case(op, lambda dtype: ((sample(*shape, dtype=dtype), *args), kwargs), dtypes, id, layouts)


READS = [
    *(of(aten.index.Tensor, index, id=name, dtypes=(torch.float32,)) for name, index in INDICES.items()),
    of(aten.index.Tensor, INDICES["adjacent"], id="layouts", layouts=("transposed", "sliced", "offset", "expanded")),
    of(aten.index.Tensor, INDICES["matrix"], id="types", dtypes=(torch.bfloat16, torch.bool, torch.complex64)),
    of(aten._unsafe_index.Tensor, INDICES["broadcast"], dtypes=(torch.float32,)),
    Case(
        aten._unsafe_masked_index.default,
        lambda dtype: (
            (sample(*X), sample(2, 3, 5, 6, dtype=torch.bool), [integers(3, 2, 1), integers(4, 3), None, None], 1.5),
            {},
        ),
        layouts=(),
    ),
    of(aten.index_select.default, 1, integers(4, 7), layouts=("transposed", "sliced")),
    of(aten.index_select.default, -1, integers(6, dtype=torch.int32), id="0-dim-index"),
    of(aten.index_select.default, 0, integers(1, 1), shape=(), id="0-dim"),
    of(aten.gather.default, 2, integers(5, 3, 4, 2, 6), layouts=("transposed", "sliced", "expanded")),
    of(aten.gather.default, -1, integers(6, 2, 3, 4, 9), id="smaller"),
    of(aten.gather.default, 0, integers(1), shape=(), id="0-dim"),
    of(aten.gather.default, 0, integers(5, 0), shape=(5,), id="empty"),
    of(aten.take.default, integers(360, 3, 2, low=-360)),
]


@parametrize(READS)
def test_read(case, dtype, variant):
    check(case, dtype, variant)


def _put(index, accumulate, shape=None):
    def make(dtype):
        x = sample(*X, dtype=dtype)
        values = sample(*(aten.index.Tensor(x, index).shape if shape is None else shape), dtype=dtype, seed=1)
        return (x, index, values, accumulate), {}

    return make


PUTS = [
    *(Case(aten.index_put.default, _put(index, False), id=name, layouts=()) for name, index in PLACES.items()),
    *(
        Case(aten.index_put.default, _put(index, True), (torch.float32, torch.int64), f"{name}-accumulate", ())
        for name, index in INDICES.items()
        if name != "empty"
    ),
    Case(aten.index_put.default, _put(PLACES["apart"], False), id="layouts", layouts=("transposed", "sliced")),
    Case(aten.index_put.default, _put(INDICES["matrix"], True, ()), id="number", layouts=()),
    Case(aten.index_put.default, _put(INDICES["matrix"], True, (1, 6)), id="broadcast-values", layouts=()),
    Case(aten._unsafe_index_put.default, _put(INDICES["broadcast"], True), layouts=()),
    Case(
        aten._unsafe_masked_index_put_accumulate.default,
        lambda dtype: (
            (
                sample(*X),
                sample(2, 3, 5, 6, dtype=torch.bool),
                [integers(3, 2, 1), integers(4, 3), None, None],
                sample(2, 3, 5, 6, seed=1),
            ),
            {},
        ),
        layouts=(),
    ),
    Case(
        aten.index_put.default,
        lambda dtype: ((sample(*X), [None, sample(4, 5, dtype=torch.bool)], sample(3, 1, 6, seed=1), False), {}),
        id="mask",
        layouts=(),
    ),
    Case(
        aten.put.default,
        lambda dtype: ((sample(*X, dtype=dtype), integers(360, 5, low=-360), sample(5, dtype=dtype), True), {}),
        (torch.float32, torch.int64),
        layouts=(),
    ),
    Case(
        aten.put.default,
        lambda dtype: ((sample(*X), torch.tensor([[7, -1], [0, 100]]), sample(2, 2), False), {}),
        id="replace",
        layouts=(),
    ),
]


@parametrize(PUTS)
def test_put(case, dtype, variant):
    check(case, dtype, variant)


# Each row of three has no place twice.
DISTINCT = torch.stack([torch.randperm(5, generator=torch.Generator().manual_seed(i))[:3] for i in range(48)])
DISTINCT = DISTINCT.reshape(2, 4, 6, 3).movedim(-1, 2).contiguous()
REPEATED = integers(5, 2, 4, 3, 6)
ALL = (torch.float32, torch.int64, torch.bfloat16, torch.float64, torch.int8)


def scattered(op, *args, index=REPEATED, dtypes=ALL[:2], src=True, id="", layouts=(), low=-2.0, high=2.0, **kwargs):
    def make(dtype):
        x = sample(*X, dtype=dtype, low=low, high=high)
        source = (sample(*X, dtype=dtype, seed=1, low=low, high=high),) if src else ()
        return (x, 2, index, *source, *args), kwargs

    return Case(op, make, dtypes, id, layouts)


SCATTERS = [
    scattered(aten.scatter.src, index=DISTINCT, dtypes=ALL, layouts=("transposed", "sliced", "expanded")),
    scattered(aten.scatter.value, 3, index=DISTINCT, src=False),
    scattered(aten.scatter.value, 2.5, index=DISTINCT.to(torch.int32).to(torch.int64), src=False, id="float"),
    scattered(aten.scatter.reduce, reduce="add"),
    scattered(aten.scatter.reduce, reduce="multiply", id="multiply"),
    scattered(aten.scatter.value_reduce, 2, reduce="multiply", src=False),
    scattered(aten.scatter_add.default, dtypes=(torch.float32, torch.int64, torch.int8)),
    *(
        scattered(aten.scatter_reduce.two, kind, include_self=include, id=f"{kind}-{include}", dtypes=(kinds))
        for kind in ("sum", "prod", "mean", "amax", "amin")
        for include, kinds in ((True, ALL[:2]), (False, ALL[:1]))
    ),
    Case(
        aten.scatter_reduce.two,
        lambda dtype: ((sample(2), 0, torch.tensor([0, 0, 1]), torch.tensor([1.0, float("nan"), 3.0]), "amax"), {}),
        id="nan",
        layouts=(),
    ),
    Case(aten.scatter_add.default, lambda dtype: ((sample(), 0, integers(1), sample()), {}), id="0-dim", layouts=()),
    Case(
        aten.scatter_add.default,
        lambda dtype: ((sample(4, dtype=torch.bool), 0, integers(4, 3), torch.ones(3, dtype=torch.bool)), {}),
        (torch.bool,),
        id="bool",
        layouts=(),
    ),
]


@parametrize(SCATTERS)
def test_scatter(case, dtype, variant):
    check(case, dtype, variant)


def rows(op, *args, index, dtypes=ALL[:2], id="", layouts=(), **kwargs) -> Case:
    def make(dtype):
        return (sample(*X, dtype=dtype), 1, index, sample(3, 2, 5, 6, dtype=dtype, seed=1), *args), kwargs

    return Case(op, make, dtypes, id, layouts)


TWICE, ONCE = torch.tensor([2, 2]), torch.tensor([3, 1])
ROWS = [
    rows(aten.index_add.default, index=TWICE, layouts=("transposed", "sliced", "expanded")),
    rows(aten.index_add.default, index=TWICE.to(torch.int32), alpha=2, id="alpha"),
    rows(aten.index_copy.default, index=ONCE),
    *(
        rows(aten.index_reduce.default, kind, index=TWICE, include_self=include, id=f"{kind}-{include}", dtypes=kinds)
        for kind in ("prod", "mean", "amax", "amin")
        for include, kinds in ((True, ALL[:2]), (False, ALL[:1]))
    ),
    of(aten.index_fill.int_Scalar, -1, torch.tensor([-1, 2]), 3),
    of(aten.index_fill.int_Scalar, 0, integers(1, 1), 2.0, shape=(), dtypes=(torch.float32,), id="0-dim"),
    of(aten.index_fill.int_Tensor, 0, torch.tensor([-1]), torch.tensor(2)),
]


@parametrize(ROWS)
def test_rows(case, dtype, variant):
    check(case, dtype, variant)


MASK = sample(*X, dtype=torch.bool, seed=3)
MASKED = [
    of(aten.masked_fill.Scalar, sample(5, 6, dtype=torch.bool), float("-inf"), dtypes=(torch.float32, torch.bfloat16)),
    of(aten.masked_fill.Scalar, sample(4, 1, 6, dtype=torch.bool), 2, id="integer", layouts=("transposed", "expanded")),
    of(aten.masked_fill.Scalar, sample(3, 1, dtype=torch.bool), 1, shape=(1, 5), id="broadcast"),
    of(aten.masked_fill.Tensor, sample(5, 6, dtype=torch.bool), torch.tensor(2)),
    of(aten.masked_scatter.default, MASK, sample(20, 20, seed=1), dtypes=(torch.float32,), layouts=("transposed",)),
    of(
        aten.masked_scatter.default, sample(6, dtype=torch.bool), sample(400, seed=1), dtypes=(torch.float32,), id="row"
    ),
    of(aten.masked_scatter_backward.default, MASK, [int(MASK.sum())], dtypes=(torch.float32,)),
    of(aten.masked_scatter_backward.default, MASK, [20, 20], dtypes=(torch.float32,), id="longer"),
    of(aten.nonzero_static.default, shape=(4, 5), dtypes=(torch.bool,), size=6)._replace(strides=False),
    of(aten.nonzero_static.default, shape=(4, 5), dtypes=(torch.int64,), size=25, fill_value=-7, id="longer")._replace(
        strides=False
    ),
]


@parametrize(MASKED)
def test_masks(case, dtype, variant):
    check(case, dtype, variant)


# -- indices out of range, and results whose size is in the data -------------------------------------------

OUTSIDE = {
    "index": lambda x, i: x[i],
    "index_put": lambda x, i: x.index_put((i,), x[0]),
    "index_select": lambda x, i: x.index_select(0, i),
    "gather": lambda x, i: x.gather(0, i.view(1, 1)),
    "scatter": lambda x, i: x.scatter(0, i.view(1, 1), 1.0),
    "index_add": lambda x, i: x.index_add(0, i, x[:1]),
    "take": lambda x, i: x.take(i * 5),
    "embedding": lambda x, i: torch.nn.functional.embedding(i, x),
}


@pytest.mark.parametrize("name", OUTSIDE)
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_an_index_out_of_range_is_an_error(name, dtype):
    if dtype == torch.int32 and name in ("take", "scatter", "gather"):
        pytest.skip("PyTorch wants int64 here")
    x = sample(4, 5).to("neuron")
    with pytest.raises((RuntimeError, IndexError), match=r"(?i)index|out of"):
        OUTSIDE[name](x, torch.tensor([4], dtype=dtype).to("neuron")).cpu()


def test_boolean_masks():
    x, mask = sample(4, 5), sample(4, 5, dtype=torch.bool, seed=2)
    on_device, device_mask = x.to("neuron"), mask.to("neuron")
    compare(on_device[device_mask], x[mask])
    values = sample(int(mask.sum()), seed=5)
    expected, actual = x.clone(), on_device.clone()
    expected[mask] = values
    actual[device_mask] = values.to("neuron")
    compare(actual, expected)
    torch_neuronx.clear_op_tracking()
    expected[mask] = 7.0
    actual[device_mask] = 7.0
    compare(actual, expected)
    assert torch_neuronx.get_fallback_ops() == []
