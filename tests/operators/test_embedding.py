# SPDX-License-Identifier: Apache-2.0
"""Embedding tables and bags."""

from __future__ import annotations

import pytest
import torch
from case import Case, check, compare, parametrize, sample

aten = torch.ops.aten


def indices(*shape: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    return torch.randint(0, 20, shape, generator=torch.Generator().manual_seed(0)).to(dtype)


def of(index, *args, dtypes=(torch.float32, torch.bfloat16), id="", layouts=()) -> Case:
    return Case(
        aten.embedding.default, lambda dtype: ((sample(20, 6, dtype=dtype), index, *args), {}), dtypes, id, layouts
    )


def backward(*args, id="") -> Case:
    make = lambda dtype: ((sample(3, 7, 6, dtype=dtype), indices(3, 7), 20, *args), {})  # noqa: E731
    return Case(aten.embedding_dense_backward.default, make, (torch.float32, torch.bfloat16), id, (), mutable=False)


CASES = [
    of(indices(3, 7), layouts=("transposed", "sliced")),
    of(indices(3, 7, dtype=torch.int32), 2, id="int32"),
    of(indices(), id="0-dim"),
    of(indices(0, 2), id="empty"),
    backward(-1, False),
    backward(3, False, id="padding"),
    backward(-1, True, id="frequency"),
]


@parametrize(CASES)
def test_embedding(case, dtype, variant):
    check(case, dtype, variant)


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize(
    "offsets, last, padding, weighted",
    [([0, 2, 2, 9], False, None, False), ([0, 0, 15], True, 3, False), ([0, 4], False, None, True)],
)
def test_embedding_bag(mode, offsets, last, padding, weighted):
    if weighted and mode != "sum":
        pytest.skip("PyTorch weighs samples in sums only")
    table, index, factors = sample(20, 6), indices(15), sample(15, seed=1)
    results = []
    for device in ("cpu", "neuron"):
        # Copies, so that each device has leaves of its own.
        weight = table.clone().to(device).requires_grad_()
        samples = factors.clone().to(device).requires_grad_() if weighted else None
        bags = torch.nn.functional.embedding_bag(
            index.to(device),
            weight,
            torch.tensor(offsets).to(device),
            mode=mode,
            include_last_offset=last,
            padding_idx=padding,
            per_sample_weights=samples,
        )
        bags.square().sum().backward()
        results.append([bags.detach(), weight.grad] + ([samples.grad] if weighted else []))
    expected, actual = results
    compare(actual, expected)


@pytest.mark.parametrize("norm_type", [2.0, 1.0, float("inf"), 3.0])
def test_embedding_renorm(norm_type):
    table, index = sample(6, 4), torch.tensor([1, 3, 3, 0])
    expected, actual = table.clone(), table.to("neuron")
    aten.embedding_renorm_(expected, index, 2.0, norm_type)
    aten.embedding_renorm_(actual, index.to("neuron"), 2.0, norm_type)
    compare(actual, expected)
