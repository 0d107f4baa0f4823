# SPDX-License-Identifier: Apache-2.0
"""Tensors made of nothing, casts and copies."""

from __future__ import annotations

import itertools

import pytest
import torch
from case import ALL, LAYOUTS, Case, check, compare, parametrize, sample, special

import torch_neuronx

aten = torch.ops.aten
DTYPES = (torch.float32, torch.int64, torch.bfloat16, torch.float64, torch.int32)


def factory(name: str, *arguments, dtypes=DTYPES, id: str = "") -> Case:
    packet, _, overload = name.partition(".")
    op = getattr(getattr(aten, packet), overload or "default")
    return Case(op, lambda d: (arguments, {"dtype": d}), dtypes, id, layouts=(), mutable=False)


CASES = [
    factory("arange", 7),
    factory("arange.start", 2, 9),
    factory("arange.start_step", 5, -3, -2),
    factory("arange.start_step", 0, 1, 0.1, dtypes=(torch.float32, torch.float64), id="fraction"),
    factory("linspace", -3, 9, 7),
    factory("linspace", 0.5, 2.25, 10, id="fraction"),
    factory("linspace", 1, 2, 1, id="one"),
    factory("logspace", -1, 2, 7, dtypes=(torch.float32, torch.float64)),
    factory("logspace", 0, 4, 5, 2.0, id="two"),
    factory("eye", 4),
    factory("eye.m", 2, 3),
    factory("full", (2, 3), 5),
    factory("full", (2, 3), -1.5, id="fraction"),
    factory("full", (0, 3), 5, id="empty"),
    factory("ones", (2, 3)),
    factory("zeros", (2, 3)),
    factory("scalar_tensor", 2.5),
    Case(aten.tril_indices.default, lambda d: ((3, 4, 1), {"dtype": d}), (torch.int64, torch.int32), layouts=()),
    Case(aten.triu_indices.default, lambda d: ((3, 4, -1), {"dtype": d}), (torch.int64, torch.int32), layouts=()),
    *(
        Case(
            getattr(aten, name).default,
            lambda d: ((sample(2, 3, dtype=d),), {}),
            DTYPES,
            layouts=("transposed",),
            mutable=False,
        )
        for name in ("ones_like", "zeros_like")
    ),
    Case(aten.full_like.default, lambda d: ((sample(2, 3, dtype=d), 2.5), {}), DTYPES, mutable=False),
    Case(aten.fill.Scalar, lambda d: ((sample(2, 3, dtype=d), 2.5), {}), DTYPES),
    Case(aten.fill.Tensor, lambda d: ((sample(2, 3, dtype=d), torch.tensor(2.5)), {}), DTYPES),
    Case(aten.zero.default, lambda d: ((sample(2, 3, dtype=d),), {}), DTYPES),
]


@parametrize(CASES)
def test_factory(case, dtype, variant):
    check(case, dtype, variant)


def test_factories_without_dtype():
    torch_neuronx.clear_op_tracking()
    for make in (
        lambda device: torch.arange(5, device=device),
        lambda device: torch.arange(2.5, device=device),
        lambda device: torch.full((2,), True, device=device),
        lambda device: torch.full((2,), 1.5, device=device),
        lambda device: torch.zeros(3, device=device),
        lambda device: torch.tensor([1, 2], device=device).new_ones(2),
    ):
        compare(make("neuron"), make("cpu"))
    assert torch_neuronx.get_fallback_ops() == []


CASTS = [(x, y) for x, y in itertools.product(ALL, ALL) if x != y and (x in ALL[:3] or y in ALL[:3])]


@pytest.mark.parametrize("source, target", CASTS, ids=lambda d: str(d).removeprefix("torch."))
def test_cast(source, target):
    x = sample(6, 8, dtype=source, low=-90, high=90)
    x = x if source.is_floating_point else special(source)
    torch_neuronx.clear_op_tracking()
    compare(x.to("neuron").to(target), x.to(target))
    assert torch_neuronx.get_fallback_ops() == []


@pytest.mark.parametrize("layout", ["contiguous", *LAYOUTS])
def test_copy_between_layouts_and_dtypes(layout):
    from case import _place

    torch_neuronx.clear_op_tracking()
    x = sample(4, 6)
    expected, actual = (_place(x, layout, device)[0] for device in ("cpu", "neuron"))
    compare(actual.contiguous(), expected.contiguous())
    compare(actual.clone(), expected.clone())
    compare(actual.to(torch.bfloat16), expected.to(torch.bfloat16))
    target = sample(6, 4, dtype=torch.bfloat16).t()
    compare(target.to("neuron").copy_(actual), target.copy_(expected))
    assert torch_neuronx.get_fallback_ops() == []
