# SPDX-License-Identifier: Apache-2.0
"""Writing by index: index_put, scatter, index_add and their relatives.

Where an index occurs twice and the operator does not combine, the last value wins, as in PyTorch's
sequential CPU kernels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from ...stablehlo import Builder, Value
from ..indexing import (
    COMBINE,
    at_least_1d,
    put_along,
    put_flat,
    put_rows,
    reduce_into,
    wrap_dim,
    wrap_negative,
)
from ..promotion import opmath
from ..registry import DataDependentShape, lowers
from .gathering import Indices, checked, clamped, is_mask, merged, normal_form, stacked

aten = torch.ops.aten


# -- index_put -----------------------------------------------------------------------------------


def _write(b: Builder, x: Value, indices: Indices, values: Value, kind: str) -> Value:
    """`values`, at the shape of x[indices], combined into `x`."""
    shape = x.shape
    if values.numel == 0 or x.numel == 0:
        return x
    x, indices = merged(b, x, indices)
    if len(indices.dims) == 1:
        result = put_rows(b, x, indices.values[0], values, indices.dims[0], kind)
        return b.reshape(result, shape)
    vectors, vector_dim = stacked(b, indices)
    rank = len(indices.shape)
    window = [d for d in range(values.ndim) if d < indices.at or d >= indices.at + rank]
    combine = COMBINE[kind]
    return b.scatter(
        x,
        vectors,
        values,
        lambda old, new: combine(b, old, new),
        window,
        indices.dims,
        indices.dims,
        vector_dim,
    )


def _put_mask(b: Builder, x: Value, indices: Sequence[Value | None], values: Value, accumulate: bool) -> Value:
    """One boolean mask whose elements all take the same value (or row): a select."""
    given = [(dim, index) for dim, index in enumerate(indices) if index is not None]
    ((dim, mask),) = given if len(given) == 1 else ((0, None),)
    if mask is None or mask.dtype not in (torch.bool, torch.uint8):
        raise DataDependentShape("index_put with a boolean mask next to other index tensors")
    # The masked dimensions are one dimension of unknown length in x[mask]; `values` must be 1 there.
    after = x.ndim - dim - mask.ndim
    position = values.ndim - after - 1
    if position >= 0 and values.shape[position] != 1:
        raise DataDependentShape("index_put of as many values as the boolean mask has ones")
    if position >= 0:
        before, rest = values.shape[:position], values.shape[position + 1 :]
        values = b.reshape(values, (*before, *(1,) * mask.ndim, *rest))
    mask = b.convert(mask, torch.bool)
    mask = b.broadcast_in_dim(mask, x.shape, range(dim, dim + mask.ndim))
    values = b.broadcast_to(values, x.shape)
    return b.select(mask, b.add(x, values) if accumulate else values, x)


def _index_put(
    b: Builder, x: Value, indices: Sequence[Value | None], values: Value, accumulate: bool, check: bool
) -> Value:
    dtype = x.dtype
    values = b.convert(values, dtype)
    if all(i is None for i in indices):
        values = b.broadcast_to(values, x.shape)
        return b.add(x, values) if accumulate else values
    if any(is_mask(i) for i in indices):
        return _put_mask(b, x, indices, values, accumulate)
    found = normal_form(b, x.shape, indices, checked if check else wrap_negative)
    shape = found.result_shape(x.shape)
    while values.ndim > len(shape) and values.shape[0] == 1:
        values = b.reshape(values, values.shape[1:])
    values = b.broadcast_to(values, shape)
    if not accumulate:
        return _write(b, x, found, values, "replace")
    wide = opmath(dtype)
    return b.convert(_write(b, b.convert(x, wide), found, b.convert(values, wide), "sum"), dtype)


@lowers(aten.index_put.default)
def index_put(b: Builder, x: Value, indices: Sequence[Value | None], values: Value, accumulate: bool) -> Value:
    return _index_put(b, x, indices, values, accumulate, check=True)


@lowers(aten._index_put_impl.default)
def index_put_impl(
    b: Builder, x: Value, indices: Sequence[Value | None], values: Value, accumulate: bool, unsafe: bool
) -> Value:
    return _index_put(b, x, indices, values, accumulate, check=not unsafe)


@lowers(aten._unsafe_index_put.default)
def unsafe_index_put(b: Builder, x: Value, indices: Sequence[Value | None], values: Value, accumulate: bool) -> Value:
    return _index_put(b, x, indices, values, accumulate, check=False)


@lowers(aten._unsafe_masked_index_put_accumulate.default)
def unsafe_masked_index_put_accumulate(
    b: Builder, x: Value, mask: Value, indices: Sequence[Value | None], values: Value
) -> Value:
    if x.numel == 0:
        return x
    found = normal_form(b, x.shape, indices, clamped)
    shape = found.result_shape(x.shape)
    wide = opmath(x.dtype)
    values = b.select(b.broadcast_to(mask, shape), b.broadcast_to(b.convert(values, wide), shape), 0)
    return b.convert(_write(b, b.convert(x, wide), found, values, "sum"), x.dtype)


@lowers(aten.put.default)
def put(b: Builder, x: Value, index: Value, source: Value, accumulate: bool) -> Value:
    if index.numel == 0:
        return x
    position = b.reshape(b.check_index(index, x.numel, wrap=True), (index.numel,))
    source = b.reshape(source, (source.numel,))
    if not accumulate:
        return put_flat(b, x, position, source, "replace")
    wide = opmath(x.dtype)
    return b.convert(put_flat(b, b.convert(x, wide), position, b.convert(source, wide), "sum"), x.dtype)


# -- element by element along a dimension ----------------------------------------------------------


def _scatter(
    b: Builder, x: Value, dim: int, index: Value, source: Value, kind: str, include_self: bool = True
) -> Value:
    """`source`: a 0-dim value for every element of the index, or a tensor at least as large as the index."""
    shape = x.shape
    if index.numel == 0:
        return x
    x, index = at_least_1d(b, x), at_least_1d(b, index)
    dim = wrap_dim(dim, x.ndim)
    if source.ndim == 0:
        source = b.broadcast_to(source, index.shape)
    source = b.slice(source, [0] * index.ndim, index.shape)
    index = b.check_index(index, x.shape[dim])

    def scatter(old: Value, new: Value, how: str) -> Value:
        return put_along(b, old, index, new, dim, how)

    if kind == "replace":
        return b.reshape(scatter(x, source, kind), shape)
    return b.reshape(reduce_into(b, x, source, kind, include_self, scatter), shape)


@lowers(aten.scatter.src)
def scatter_src(b: Builder, x: Value, dim: int, index: Value, src: Value) -> Value:
    return _scatter(b, x, dim, index, src, "replace")


@lowers(aten.scatter.value)
def scatter_value(b: Builder, x: Value, dim: int, index: Value, value: Value | float) -> Value:
    return _scatter(b, x, dim, index, b.value(value, x.dtype), "replace")


@lowers(aten.scatter.reduce)
def scatter_reduce(b: Builder, x: Value, dim: int, index: Value, src: Value, *, reduce: str) -> Value:
    return _scatter(b, x, dim, index, src, reduce)


@lowers(aten.scatter.value_reduce)
def scatter_value_reduce(b: Builder, x: Value, dim: int, index: Value, value: Value | float, *, reduce: str) -> Value:
    return _scatter(b, x, dim, index, b.value(value, x.dtype), reduce)


@lowers(aten.scatter_add.default)
def scatter_add(b: Builder, x: Value, dim: int, index: Value, src: Value) -> Value:
    return _scatter(b, x, dim, index, src, "sum")


@lowers(aten.scatter_reduce.two)
def scatter_reduce_two(
    b: Builder, x: Value, dim: int, index: Value, src: Value, reduce: str, *, include_self: bool
) -> Value:
    return _scatter(b, x, dim, index, src, reduce, include_self)


# -- slice by slice ------------------------------------------------------------------------------


def _index_rows(
    b: Builder,
    x: Value,
    dim: int,
    index: Value,
    source: Value,
    kind: str,
    include_self: bool = True,
    wrap: bool = False,
) -> Value:
    """`source`: a 0-dim value for every element, or one slice of `x` for every element of the 1-D index."""
    shape = x.shape
    if index.numel == 0 or x.numel == 0:
        return x
    x, index = at_least_1d(b, x), at_least_1d(b, index)
    dim = wrap_dim(dim, x.ndim)
    slices = [index.shape[0] if d == dim else n for d, n in enumerate(x.shape)]
    source = b.reshape(source, slices) if source.numel == math.prod(slices) else b.broadcast_to(source, slices)
    index = b.check_index(index, x.shape[dim], wrap=wrap)

    def scatter(old: Value, new: Value, how: str) -> Value:
        return put_rows(b, old, index, new, dim, how)

    if kind == "replace":
        return b.reshape(scatter(x, source, kind), shape)
    return b.reshape(reduce_into(b, x, source, kind, include_self, scatter), shape)


@lowers(aten.index_add.default)
def index_add(b: Builder, x: Value, dim: int, index: Value, source: Value, *, alpha: Value | float) -> Value:
    wide = opmath(x.dtype)
    source = b.convert(source, wide)
    if isinstance(alpha, Value) or alpha != 1:
        source = b.multiply(source, b.value(alpha, wide))
    if wide == x.dtype:
        return _index_rows(b, x, dim, index, source, "sum")
    return b.convert(_index_rows(b, b.convert(x, wide), dim, index, source, "sum"), x.dtype)


@lowers(aten.index_copy.default)
def index_copy(b: Builder, x: Value, dim: int, index: Value, source: Value) -> Value:
    return _index_rows(b, x, dim, index, source, "replace")


@lowers(aten.index_fill.int_Scalar, aten.index_fill.int_Tensor)
def index_fill(b: Builder, x: Value, dim: int, index: Value, value: Value | float) -> Value:
    return _index_rows(b, x, dim, index, b.value(value, x.dtype), "replace", wrap=True)


@lowers(aten.index_reduce.default)
def index_reduce(
    b: Builder, x: Value, dim: int, index: Value, source: Value, reduce: str, *, include_self: bool
) -> Value:
    return _index_rows(b, x, dim, index, source, reduce, include_self)
