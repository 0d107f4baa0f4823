# SPDX-License-Identifier: Apache-2.0
"""Operands and results that are views: read as the first step of a program, written as the last one."""

from __future__ import annotations

import math
import random

import pytest
import torch
from case import compare

import torch_neuronx


def random_view(seed: int) -> tuple[int, list[int], list[int], int]:
    """Elements of the storage, sizes, strides and offset of some view of a contiguous tensor."""
    choose = random.Random(seed)
    x = torch.empty([choose.randint(1, 6) for _ in range(choose.randint(1, 4))])
    for _ in range(choose.randint(1, 4)):
        step = choose.choice(("transpose", "slice", "narrow", "unsqueeze", "expand", "select", "diagonal", "unfold"))
        dims = range(x.ndim)
        if x.numel() == 0 or not dims:
            break
        dim = choose.choice(dims)
        size = x.shape[dim]
        if step == "transpose":
            x = x.transpose(dim, choose.choice(dims))
        elif step == "slice":
            x = x[(slice(None),) * dim + (slice(choose.randrange(size), None, choose.randint(1, 3)),)]
        elif step == "narrow":
            start = choose.randrange(size)
            x = x.narrow(dim, start, choose.randint(1, size - start))
        elif step == "select":
            x = x.select(dim, choose.randrange(size))
        elif step == "unfold":
            x = x.unfold(dim, choose.randint(1, size), choose.randint(1, 3))
        elif step == "diagonal" and x.ndim > 1:
            x = x.diagonal(0, *choose.sample(dims, 2))
        elif step in ("unsqueeze", "expand") and x.ndim < 5:
            x = x.unsqueeze(dim)
            if step == "expand":
                x = x.expand(*x.shape[:dim], choose.randint(1, 3), *x.shape[dim + 1 :])
    return x.untyped_storage().nbytes() // 4, list(x.shape), list(x.stride()), x.storage_offset()


def overlaps(elements: int, sizes: list[int], strides: list[int], offset: int) -> bool:
    places = torch.as_strided(torch.arange(elements), sizes, strides, offset)
    return places.unique().numel() < math.prod(sizes)


ODD = [
    (20, [3, 3], [2, 2], 1),  # as long as a dense tensor, but with gaps and twice the same elements
    (40, [2, 3], [4, 1], 2),  # rows across the ends of the rows that the strides suggest
    (40, [3, 2], [5, 7], 1),  # strides that do not divide one another
    (30, [4, 2, 3], [6, 0, 1], 3),
    (64, [3, 2, 2], [16, 8, 2], 17),
    (1, [], [], 0),
]
VIEWS = ODD + [random_view(seed) for seed in range(40)]


@pytest.mark.parametrize("view", VIEWS, ids=str)
def test_read(view):
    elements, sizes, strides, offset = view
    memory = torch.arange(elements, dtype=torch.float32)
    on_device = memory.to("neuron")
    torch_neuronx.clear_op_tracking()
    expected = torch.as_strided(memory, sizes, strides, offset) * 2
    actual = torch.as_strided(on_device, sizes, strides, offset) * 2
    compare(actual, expected, strides=False)
    assert torch_neuronx.get_fallback_ops() == []


@pytest.mark.parametrize("view", [v for v in VIEWS if not overlaps(*v)], ids=str)
def test_write(view):
    elements, sizes, strides, offset = view
    memory = torch.arange(elements, dtype=torch.float32)
    on_device = memory.to("neuron")
    torch_neuronx.clear_op_tracking()
    for x in (memory, on_device):
        torch.as_strided(x, sizes, strides, offset).mul_(-1).add_(1)
    compare(on_device, memory)
    assert torch_neuronx.get_fallback_ops() == []


@pytest.mark.parametrize(
    "sizes, strides",
    [((3, 4, 5), (20, 5, 1)), ((3, 4, 5), (1, 3, 12)), ((6, 2, 4), (4, 24, 1)), ((3, 5, 4), (5, 1, 15))],
)
def test_results_keep_the_strides_of_their_operand(sizes, strides):
    memory = torch.arange(math.prod(sizes), dtype=torch.float32)
    expected = torch.as_strided(memory, sizes, strides) + 1
    actual = torch.as_strided(memory.to("neuron"), sizes, strides) + 1
    compare(actual, expected)
    # The bytes too lie where the strides say.
    compare(torch.as_strided(actual, (memory.numel(),), (1,)), torch.as_strided(expected, (memory.numel(),), (1,)))
