# SPDX-License-Identifier: Apache-2.0
"""Products of groups of rows, one matrix a group: the experts of a mixture.

Where a group ends is data (`offs`), so the sizes of its product are not known to the program. The decomposition
masks: each group is multiplied whole, with zeros in what belongs to others.

Host kernel `neuron.grouped_matmul` (see `Builder.composite`): operands x, y and the ends of the groups as int32; the
result in the operands' dtype, zero outside of all groups. Its config `transposed=01` says which of x and y come with
their last two dimensions swapped.
"""

from __future__ import annotations

import torch

from ...stablehlo import Builder, Value
from ..registry import lowers, lowers_of_library
from .contractions import contract

aten = torch.ops.aten

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def _result(x, y, offs=None, bias=None, out_dtype=None):
    """Shape and dtype. PyTorch's meta kernel knows CUDA's limits (bfloat16, aligned rows); the CPU has none of them."""
    shapes = f"{list(x.shape)} and {list(y.shape)}"
    if x.dtype not in _DTYPES or y.dtype != x.dtype or out_dtype not in (None, x.dtype):
        raise RuntimeError(
            f"_grouped_mm: expected operands and result of one dtype, float32, bfloat16 or float16, got {x.dtype}, "
            f"{y.dtype} and {out_dtype or x.dtype}"
        )
    if x.ndim not in (2, 3) or y.ndim not in (2, 3):
        raise RuntimeError(f"_grouped_mm: expected operands with 2 or 3 dimensions, got {shapes}")
    if x.shape[-1] != y.shape[-2]:
        raise RuntimeError(f"_grouped_mm: the last dimension of x and the second to last of y differ: {shapes}")
    if bias is not None:
        raise RuntimeError("_grouped_mm: expected no bias, as on the CPU; add it to the result")
    if (offs is None) != (x.ndim == y.ndim == 3):
        raise RuntimeError(f"_grouped_mm: expected offs unless both operands have 3 dimensions, got {shapes}")
    groups = {t.shape[0] for t in (x, y) if t.ndim == 3}
    if offs is not None:
        if offs.ndim != 1 or offs.dtype != torch.int32:
            raise RuntimeError(f"_grouped_mm: expected offs as an int32 vector, got {list(offs.shape)} {offs.dtype}")
        groups.add(offs.shape[0])
    if len(groups) > 1:
        raise RuntimeError(f"_grouped_mm: {sorted(groups)} groups: offs and operands {shapes} must agree")
    lead = sorted(groups) if x.ndim == y.ndim else []
    return torch.empty([*lead, x.shape[-2], y.shape[-1]], dtype=x.dtype, device="meta")


@lowers(aten._grouped_mm.default, meta=_result)
def grouped_mm(b: Builder, x: Value, y: Value, offs: Value | None, bias: Value | None, out_dtype: torch.dtype | None):
    return contract(b, x, y, ((2,), (1,)), ((0,), (0,))) if offs is None else _grouped(b, x, y, offs)


# What Transformers puts into graphs where PyTorch would not trace _grouped_mm.
@lowers_of_library("transformers::grouped_mm_fallback")
def grouped_mm_fallback(b: Builder, x: Value, y: Value, offs: Value) -> Value:
    return _grouped(b, x, y, offs)


@lowers_of_library("transformers::grouped_mm_fallback_backward")
def grouped_mm_fallback_backward(b: Builder, x: Value, y: Value, offs: Value, grad: Value) -> tuple[Value, Value]:
    return _grouped(b, grad, b.transpose(y, _SWAP[3]), offs), _grouped(b, b.transpose(x, _SWAP[2]), grad, offs)


def _grouped(b: Builder, x: Value, y: Value, offs: Value) -> Value:
    offs = b.convert(offs, torch.int32)
    lead = [offs.shape[0]] if x.ndim == y.ndim else []

    def decomposition(x: Value, y: Value, offs: Value) -> Value:
        x, y = (b.transpose(v, _SWAP[v.ndim]) if swap else v for v, swap in zip((x, y), swapped, strict=True))
        if x.ndim == 3:
            return contract(b, x, _masked(b, y, offs, 1), ((0, 2), (0, 1)))
        if y.ndim == 3:
            return contract(b, _masked(b, x, offs, 0), y, ((0, 2), (0, 1)))
        return contract(b, _masked(b, x, offs, 1), y, ((2,), (0,)))

    (x, swap_x), (y, swap_y) = (_as_it_lies(b, v) for v in (x, y))
    swapped = (swap_x, swap_y)
    config = f"transposed={int(swap_x)}{int(swap_y)}"
    rows, columns = x.shape[-1 if swap_x else -2], y.shape[-2 if swap_y else -1]
    types = [((*lead, rows, columns), x.dtype)]
    return b.composite("neuron.grouped_matmul", [x, y, offs], types, decomposition, config)[0]


_SWAP = {2: (1, 0), 3: (0, 2, 1)}


def _as_it_lies(b: Builder, x: Value) -> tuple[Value, bool]:
    """What x was before its last two dimensions were swapped, and whether they were: weights need not be copied."""
    source, permutation = b.transposed.get(x.name, (x, ()))
    return (source, True) if permutation == _SWAP[x.ndim] else (x, False)


def _masked(b: Builder, x: Value, ends: Value, dim: int) -> Value:
    """[groups, *x.shape]: x with zeros where its index along `dim` belongs to another group."""
    shape = (ends.shape[0], *x.shape)
    position = b.iota(shape, dim + 1, torch.int32)
    begins = b.concatenate([b.constant(0, torch.int32, (1,)), b.slice_dim(ends, 0, 0, ends.shape[0] - 1)], 0)
    begin, end = (b.broadcast_in_dim(v, shape, [0]) for v in (begins, ends))
    inside = b.and_(b.compare(position, begin, "GE"), b.compare(position, end, "LT"))
    return b.select(inside, b.broadcast_in_dim(x, shape, [1, 2]), b.constant(0, x.dtype, shape))
