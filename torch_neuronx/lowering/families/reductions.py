# SPDX-License-Identifier: Apache-2.0
"""Sums, products and logical reductions.

Half types accumulate in float32 and are rounded once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from ...stablehlo import Builder, Value
from ..indexing import wrap_dim
from ..promotion import opmath
from ..registry import lowers

aten = torch.ops.aten
Dims = int | Sequence[int] | None


def reduced_dims(dim: Dims, rank: int) -> list[int]:
    """The dimensions that a reduction runs over, sorted; None and [] mean all of them."""
    if dim is None or dim == [] or rank == 0:
        return list(range(rank))
    return sorted(wrap_dim(d, rank) for d in ([dim] if isinstance(dim, int) else dim))


def shaped(b: Builder, x: Value, index: int = 0) -> Value:
    """`x` rounded to the dtype of result `index`, with the size-1 dimensions that keepdim asks for."""
    out = b.out[index]
    return b.reshape(b.convert(x, out.dtype), out.shape)


def accumulated(b: Builder, x: Value, dim: Dims, kind: str) -> Value:
    """Reduces `x`, cast to the dtype of the result, in its compute dtype."""
    dtype = b.out[0].dtype
    x = b.convert(b.convert(x, dtype), opmath(dtype))
    return b.reduce(x, reduced_dims(dim, x.ndim), kind)


@lowers(aten.sum.default, aten.sum.dim_IntList)
def sum_(b: Builder, x: Value, dim: Dims = None, keepdim: bool = False, *, dtype=None) -> Value:
    return shaped(b, accumulated(b, x, dim, "add"))


@lowers(aten.prod.default, aten.prod.dim_int)
def prod(b: Builder, x: Value, dim: Dims = None, keepdim: bool = False, *, dtype=None) -> Value:
    return shaped(b, accumulated(b, x, dim, "multiply"))


@lowers(aten.mean.default, aten.mean.dim)
def mean(b: Builder, x: Value, dim: Dims = None, keepdim: bool = False, *, dtype=None) -> Value:
    count = math.prod(x.shape[d] for d in reduced_dims(dim, x.ndim))
    total = accumulated(b, x, dim, "add")
    # Over an empty dimension 0 / 0 is the NaN that PyTorch returns.
    return shaped(b, b.divide(total, count))


@lowers(aten.nansum.default)
def nansum(b: Builder, x: Value, dim: Dims, keepdim: bool, *, dtype=None) -> Value:
    if x.dtype.is_floating_point:
        x = b.select(b.is_nan(x), 0, x)
    return shaped(b, accumulated(b, x, dim, "add"))


def _logical(name: str, kind: str) -> None:
    operator = getattr(aten, name)

    @lowers(operator.default, operator.dim, operator.dims)
    def rule(b: Builder, x: Value, dim: Dims = None, keepdim: bool = False) -> Value:
        x = b.convert(x, torch.bool)
        # Unlike the arithmetic reductions, these take an empty list of dimensions at its word.
        if dim == []:
            return shaped(b, x)
        return shaped(b, b.reduce(x, reduced_dims(dim, x.ndim), kind))


_logical("any", "or")
_logical("all", "and")


@lowers(aten.count_nonzero.default, aten.count_nonzero.dim_IntList)
def count_nonzero(b: Builder, x: Value, dim: Dims) -> Value:
    dims = reduced_dims(dim, x.ndim)
    # 32-bit counters vectorize twice as wide; they hold every count of a tensor below 2^31 elements.
    counter = torch.int32 if x.numel < 2**31 else torch.int64
    return shaped(b, b.reduce(b.convert(b.convert(x, torch.bool), counter), dims, "add"))


@lowers(aten.trace.default)
def trace(b: Builder, x: Value) -> Value:
    size = min(x.shape)
    x = b.slice(x, [0, 0], [size, size])
    rows, columns = (b.iota(x.shape, d, torch.int32) for d in (0, 1))
    dtype = opmath(b.out[0].dtype)
    return shaped(b, b.reduce(b.select(b.compare(rows, columns, "EQ"), b.convert(x, dtype), 0), [0, 1], "add"))
