# SPDX-License-Identifier: Apache-2.0
"""The functional twins of views, which share their rules with the views in graphs."""

from __future__ import annotations

import torch
from case import Case, check, parametrize, sample

aten = torch.ops.aten


def of(op, *args, shape=(3, 4, 5), dtypes=(torch.float32,), id="", layouts=(), **kwargs) -> Case:
    return Case(op, lambda dtype: ((sample(*shape, dtype=dtype), *args), kwargs), dtypes, id, layouts, mutable=False)


CASES = [
    of(aten.alias_copy.default),
    of(aten.detach_copy.default),
    of(aten.view_copy.default, [12, 5], dtypes=(torch.float32, torch.bool, torch.bfloat16)),
    of(aten.view_copy.default, [1, 1], shape=(), id="0-dim"),
    of(aten._reshape_copy.default, [5, -1]),
    of(aten.squeeze_copy.default, shape=(1, 3, 1)),
    of(aten.squeeze_copy.dim, -1, shape=(1, 3, 1)),
    of(aten.squeeze_copy.dim, 0, shape=(), id="0-dim"),
    of(aten.squeeze_copy.dims, [0, 1], shape=(1, 3, 1)),
    of(aten.unsqueeze_copy.default, -1),
    of(aten.permute_copy.default, [2, -3, 1], layouts=("transposed", "sliced")),
    of(aten.transpose_copy.int, 0, -1),
    of(aten.transpose_copy.int, 0, -1, shape=(), id="0-dim"),
    of(aten.t_copy.default, shape=(2, 3)),
    of(aten.t_copy.default, shape=(3,), id="1-dim"),
    of(aten.expand_copy.default, [2, 3, 4], shape=(3, 1)),
    of(aten.slice_copy.Tensor, 1, 1, 3),
    of(aten.slice_copy.Tensor, -1, -4, 100, 2, id="step"),
    of(aten.slice_copy.Tensor, 2, None, None, 3, id="whole"),
    of(aten.slice_copy.Tensor, 0, 2, 1, id="empty"),
    of(aten.narrow_copy.default, 1, -3, 2),
    of(aten.select_copy.int, 1, -1),
    of(aten.split_copy.Tensor, 2, 1),
    of(aten.split_with_sizes_copy.default, [1, 3, 1], -1),
    of(aten.unbind_copy.int, 1),
    of(aten.diagonal_copy.default, 1, 0, 2),
    of(aten.diagonal_copy.default, -2, 2, 1, id="below"),
    of(aten.diagonal_copy.default, 10, id="outside"),
    of(aten.unfold_copy.default, 1, 2, 1, id="overlapping"),
    of(aten.unfold_copy.default, 2, 2, 3, id="gaps"),
    of(aten.unfold_copy.default, -3, 3, 2, id="one"),
    of(aten.unfold_copy.default, 0, 1, 1, shape=(), id="0-dim"),
    of(aten.as_strided_copy.default, [3, 3], [2, 2], 1, id="overlapping"),
    of(aten.as_strided_copy.default, [4, 2], [10, 1], 3, id="rows"),
    of(aten.as_strided_copy.default, [], [], 3, id="0-dim"),
    of(aten.view_copy.dtype, torch.int32, id="same-size"),
    of(aten.view_copy.dtype, torch.bfloat16, id="halves"),
    of(aten.view_copy.dtype, torch.float64, shape=(3, 4), id="pairs"),
    of(aten.view_copy.dtype, torch.uint8, dtypes=(torch.bool,), id="bytes"),
    of(aten.view_copy.dtype, torch.complex64, shape=(3, 4), id="complex"),
    of(aten.view_copy.dtype, torch.float32, dtypes=(torch.complex64,), id="parts"),
]


@parametrize(CASES)
def test_copies_of_views(case, dtype, variant):
    check(case, dtype, variant)
