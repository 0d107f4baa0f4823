# SPDX-License-Identifier: Apache-2.0
"""Tensors with one view replaced, and the gradients of views."""

from __future__ import annotations

import torch
from case import Case, check, parametrize, sample

aten = torch.ops.aten


def update(op, *args, src, shape=(3, 4, 5), id="", dtypes=(torch.float32, torch.int64), layouts=()) -> Case:
    def make(dtype):
        return (sample(*shape, dtype=dtype), sample(*src, dtype=dtype, seed=1), *args), {}

    return Case(op, make, dtypes, id, layouts, mutable=False)


def gradient(op, *args, grad, id="", dtypes=(torch.float32,)) -> Case:
    return Case(op, lambda dtype: ((sample(*grad, dtype=dtype), *args), {}), dtypes, id, (), mutable=False)


CASES = [
    update(aten.slice_scatter.default, 1, 1, 3, src=(3, 2, 5), layouts=("transposed",)),
    update(aten.slice_scatter.default, 2, 1, 5, 2, src=(3, 4, 2), id="step"),
    update(aten.slice_scatter.default, 2, -2, 100, 2, src=(3, 4, 1), id="clamped"),
    update(aten.slice_scatter.default, 2, src=(3, 4, 5), id="whole"),
    update(aten.select_scatter.default, 1, -1, src=(3, 5)),
    update(aten.diagonal_scatter.default, 0, 0, 1, src=(5, 3)),
    update(aten.diagonal_scatter.default, 1, 0, 2, src=(4, 3), id="above"),
    update(aten.diagonal_scatter.default, -2, 0, 2, src=(4, 1), id="below"),
    update(aten.as_strided_scatter.default, [3, 3], [7, 2], 1, src=(3, 3), id="gaps"),
    update(aten.as_strided_scatter.default, [4, 2], [10, 1], 3, src=(4, 2), id="rows"),
    update(aten.as_strided_scatter.default, [4, 5], [5, 1], 3, src=(4, 5), id="dense"),
    gradient(aten.slice_backward.default, [3, 4, 5], 1, 1, 3, 1, grad=(3, 2, 5)),
    gradient(aten.slice_backward.default, [3, 4, 5], 2, 1, 2**63 - 1, 2, grad=(3, 4, 2), id="step"),
    gradient(aten.select_backward.default, [3, 4, 5], 1, -2, grad=(3, 5)),
    gradient(aten.diagonal_backward.default, [3, 4, 5], 0, 0, 2, grad=(4, 3)),
    gradient(aten.diagonal_backward.default, [3, 4, 5], 2, 2, 1, grad=(3, 2), id="above"),
    gradient(aten.unfold_backward.default, [3, 4, 5], 1, 2, 1, grad=(3, 3, 5, 2)),
    gradient(aten.unfold_backward.default, [2, 5, 3], 1, 2, 3, grad=(2, 2, 3, 2), id="gaps"),
    gradient(aten.unfold_backward.default, [26], 0, 20, 1, grad=(7, 20), id="long"),
    gradient(aten.diag_embed.default, grad=(2, 3)),
    gradient(aten.diag_embed.default, -2, 2, 0, grad=(2, 3), id="below"),
    gradient(aten.diag_embed.default, 1, grad=(3,), id="vector"),
]


@parametrize(CASES)
def test_view_updates(case, dtype, variant):
    check(case, dtype, variant)
