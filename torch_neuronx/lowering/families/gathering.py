# SPDX-License-Identifier: Apache-2.0
"""Reading by index: index, gather, index_select, take, and their unchecked kin."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from ...stablehlo import Builder, Value
from ..indexing import at_least_1d, row_major_strides, take_along, take_rows, wrap_dim, wrap_negative
from ..registry import DataDependentShape, lowers

aten = torch.ops.aten


class Indices(NamedTuple):
    """The index tensors of `x[i, :, j]` in normal form.

    dims: the dimensions they index.
    values: the index tensors at their common shape.
    at: where in the result the index dimensions lie: in place when `dims` are neighbours, else in front.
    """

    dims: tuple[int, ...]
    values: tuple[Value, ...]
    at: int

    @property
    def shape(self) -> tuple[int, ...]:
        return self.values[0].shape

    @property
    def adjacent(self) -> bool:
        return self.dims[-1] - self.dims[0] == len(self.dims) - 1

    def result_shape(self, x: Sequence[int]) -> tuple[int, ...]:
        rest = [n for d, n in enumerate(x) if d not in self.dims]
        return (*rest[: self.at], *self.shape, *rest[self.at :])


def is_mask(index: Value | None) -> bool:
    return index is not None and index.dtype in (torch.bool, torch.uint8)


def checked(b: Builder, index: Value, limit: int) -> Value:
    """Negative indices wrapped; out of range: the launch fails."""
    return b.check_index(index, limit, wrap=True)


def clamped(b: Builder, index: Value, limit: int) -> Value:
    """Any index at all; `limit` is not 0."""
    return b.clamp(0, index, limit - 1)


Bound = Callable[[Builder, Value, int], Value]


def normal_form(b: Builder, shape: Sequence[int], indices: Sequence[Value | None], bound: Bound) -> Indices:
    """The indices into a tensor of `shape`, each made to lie in its dimension by `bound` before they are broadcast.

    bound: checked, clamped, or wrap_negative where the caller vouches for the range.
    """
    if any(is_mask(index) for index in indices):
        raise DataDependentShape("a boolean mask as index: the number of elements is the number of ones in the mask")
    given = [(dim, index) for dim, index in enumerate(indices) if index is not None]
    dims = tuple(dim for dim, _ in given)
    dtype = torch.int64 if any(index.dtype == torch.int64 for _, index in given) else torch.int32
    values = b.broadcast(*(bound(b, b.convert(index, dtype), shape[dim]) for dim, index in given))
    neighbours = dims[-1] - dims[0] == len(dims) - 1
    return Indices(dims, tuple(values), dims[0] if neighbours else 0)


def merged(b: Builder, x: Value, indices: Indices) -> tuple[Value, Indices]:
    """Neighbouring indexed dimensions as one: a single index into their product."""
    if len(indices.dims) == 1 or not indices.adjacent:
        return x, indices
    first, last = indices.dims[0], indices.dims[-1]
    sizes = x.shape[first : last + 1]
    total = None
    for value, stride in zip(indices.values, row_major_strides(sizes), strict=True):
        part = b.multiply(value, stride) if stride != 1 else value
        total = part if total is None else b.add(total, part)
    x = b.reshape(x, (*x.shape[:first], math.prod(sizes), *x.shape[last + 1 :]))
    return x, Indices((first,), (total,), first)


def stacked(b: Builder, indices: Indices) -> tuple[Value, int]:
    """The index vectors of gather and scatter, and the dimension in which they lie."""
    if len(indices.values) == 1:
        return indices.values[0], len(indices.shape)
    columns = [b.reshape(value, (*indices.shape, 1)) for value in indices.values]
    return b.concatenate(columns, len(indices.shape)), len(indices.shape)


def read(b: Builder, x: Value, indices: Indices) -> Value:
    shape = indices.result_shape(x.shape)
    if math.prod(shape) == 0:
        return b.constant(0, x.dtype, shape)
    x, indices = merged(b, x, indices)
    if len(indices.dims) == 1:
        return take_rows(b, x, indices.values[0], indices.dims[0])
    vectors, vector_dim = stacked(b, indices)
    rank = len(indices.shape)
    offset_dims = [d for d in range(len(shape)) if d < indices.at or d >= indices.at + rank]
    sizes = [1 if d in indices.dims else n for d, n in enumerate(x.shape)]
    return b.gather(x, vectors, shape, offset_dims, indices.dims, indices.dims, vector_dim, sizes)


@lowers(aten.index.Tensor)
def index(b: Builder, x: Value, indices: Sequence[Value | None]) -> Value:
    if all(i is None for i in indices):
        return x
    return read(b, x, normal_form(b, x.shape, indices, checked))


@lowers(aten._unsafe_index.Tensor)
def unsafe_index(b: Builder, x: Value, indices: Sequence[Value | None]) -> Value:
    if all(i is None for i in indices):
        return x
    return read(b, x, normal_form(b, x.shape, indices, wrap_negative))


@lowers(aten._unsafe_masked_index.default)
def unsafe_masked_index(
    b: Builder, x: Value, mask: Value, indices: Sequence[Value | None], fill: Value | float
) -> Value:
    """x[indices] where the mask is set, else `fill`; indices under the mask's zeros may be anything."""
    out = tuple(b.out[0].shape)
    if x.numel == 0:
        return b.broadcast_to(b.value(fill, x.dtype), out)
    picked = read(b, x, normal_form(b, x.shape, indices, clamped))
    return b.select(b.broadcast_to(mask, out), picked, b.value(fill, x.dtype))


@lowers(aten.index_select.default)
def index_select(b: Builder, x: Value, dim: int, index: Value) -> Value:
    out = b.out[0]
    source = at_least_1d(b, x)
    dim = wrap_dim(dim, source.ndim)
    index = b.check_index(at_least_1d(b, index), source.shape[dim])
    return b.reshape(take_rows(b, source, index, dim), out.shape)


@lowers(aten.gather.default)
def gather(b: Builder, x: Value, dim: int, index: Value) -> Value:
    shape = index.shape
    x, index = at_least_1d(b, x), at_least_1d(b, index)
    dim = wrap_dim(dim, x.ndim)
    if index.numel == 0:
        return b.constant(0, x.dtype, shape)
    index = b.check_index(index, x.shape[dim])
    return b.reshape(take_along(b, x, index, dim), shape)


@lowers(aten.take.default)
def take(b: Builder, x: Value, index: Value) -> Value:
    if index.numel == 0:
        return b.constant(0, x.dtype, index.shape)
    flat = b.reshape(x, (x.numel,))
    return take_rows(b, flat, b.check_index(index, x.numel, wrap=True), 0)
