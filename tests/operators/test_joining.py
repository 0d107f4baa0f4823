# SPDX-License-Identifier: Apache-2.0
"""Joining, repeating, reordering and padding; triangles."""

from __future__ import annotations

import torch
from case import Case, check, parametrize, sample

aten = torch.ops.aten
TWO = (torch.float32, torch.bool)


def of(op, *args, shape=(3, 4, 5), dtypes=TWO, id="", layouts=(), mutable=True, **kwargs) -> Case:
    return Case(op, lambda dtype: ((sample(*shape, dtype=dtype), *args), kwargs), dtypes, id, layouts, mutable=mutable)


def joined(op, *shapes, dim=0, second=None, id="", dtypes=TWO, layouts=()) -> Case:
    def make(dtype):
        kinds = [dtype] + [second or dtype] * (len(shapes) - 1)
        return ([sample(*s, dtype=d, seed=i) for i, (s, d) in enumerate(zip(shapes, kinds, strict=True))], dim), {}

    return Case(op, make, dtypes, id, layouts)


CASES = [
    joined(aten.cat.default, (3, 4, 5), (1, 4, 5), layouts=("transposed", "sliced", "expanded")),
    joined(aten.cat.default, (3, 4, 5), (3, 4, 2), (0,), dim=-1, id="legacy-empty"),
    joined(aten.cat.default, (3,), (2,), second=torch.float64, dtypes=(torch.float32, torch.int64), id="promotes"),
    joined(aten.cat.default, (0, 3), (2, 3), id="empty"),
    joined(aten.stack.default, (3, 4), (3, 4), dim=1),
    joined(aten.stack.default, (), (), dim=-1, id="0-dim"),
    of(aten.flip.default, [0, -1], layouts=("transposed", "sliced")),
    of(aten.flip.default, [], id="none"),
    of(aten.roll.default, [1]),
    of(aten.roll.default, [2, -7], [0, 2], id="dims"),
    of(aten.roll.default, [1], [0], shape=(1, 3), id="one"),
    of(aten.repeat.default, [2, 1, 1, 2], layouts=("transposed", "expanded")),
    of(aten.repeat.default, [3], shape=(), id="0-dim"),
    of(aten.repeat.default, [2, 0, 1], id="empty"),
    of(aten.tril.default, -1, dtypes=(torch.float32, torch.int64, torch.bool), layouts=("transposed",)),
    of(aten.triu.default, 2),
    of(aten.constant_pad_nd.default, [1, 2, -1, 1], 3.5, mutable=False, dtypes=(torch.float32, torch.bfloat16)),
    of(aten.constant_pad_nd.default, [0, 0, 0, 0, 1, 1], mutable=False, id="first"),
]

REPEATS = [
    Case(
        aten.repeat_interleave.Tensor,
        lambda dtype: ((torch.tensor([0, 2, 0, 3, 1, 0], dtype=dtype),), {"output_size": 6}),
        (torch.int64, torch.int32),
        layouts=(),
        mutable=False,
    )
]

FLOATS = (torch.float32, torch.bfloat16)
CROSS = [
    Case(
        aten.linalg_cross.default,
        lambda dtype: ((sample(4, 3, dtype=dtype), sample(1, 3, dtype=dtype, seed=1)), {}),
        (torch.float32, torch.int64),
        layouts=("transposed",),
    )
]


@parametrize(CASES + REPEATS + CROSS)
def test_joining(case, dtype, variant):
    check(case, dtype, variant)


PADS = {
    1: ([2, 3], [-1, 2]),
    2: ([1, 2, 3, 2],),
    3: ([1, 2, 3, 2, 1, 1],),
}


def padding_cases() -> list[Case]:
    cases = []
    for kind in ("reflection", "replication"):
        for rank, pads in PADS.items():
            forward = getattr(aten, f"{kind}_pad{rank}d").default
            backward = getattr(aten, f"{kind}_pad{rank}d_backward").default
            shape = (2, 3, *(4, 5, 6)[:rank])
            for pad in pads:
                name = "cut" if min(pad) < 0 else ""
                cases.append(of(forward, pad, shape=shape, dtypes=FLOATS, id=name, mutable=False))
                cases.append(Case(backward, _gradient(forward, shape, pad), (torch.float32,), name, (), mutable=False))
    return cases


def _gradient(forward, shape, pad):
    def make(dtype):
        x = sample(*shape, dtype=dtype)
        grad = sample(*forward(x, pad).shape, dtype=dtype, seed=1)
        return (grad, x, pad), {}

    return make


@parametrize(padding_cases())
def test_padding(case, dtype, variant):
    check(case, dtype, variant)


def test_circular_padding_is_one_program():
    x = sample(2, 3, 4, 5)
    expected = torch.nn.functional.pad(x, [1, 2, -1, 2], mode="circular")
    with torch.no_grad():
        actual = torch.nn.functional.pad(x.to("neuron"), [1, 2, -1, 2], mode="circular")
    torch.testing.assert_close(actual.cpu(), expected)
