# SPDX-License-Identifier: Apache-2.0
"""Sorting and what is found by sorting: sort, topk, kthvalue, median, mode."""

from __future__ import annotations

import torch

from ...stablehlo import Builder, Value
from ..indexing import running, take_along, wrap_dim
from ..ordering import order_key, sort_along, sort_positions
from ..registry import lowers

aten = torch.ops.aten

# Dtypes whose values float32 holds exactly, which is what the compiler's own top-k works in.
_TOP_K = (torch.float32, torch.bfloat16, torch.float16, torch.int8, torch.uint8, torch.int16)


def _finish(b: Builder, values: Value, positions: Value) -> tuple[Value, Value]:
    shape = b.out[0].shape
    return b.reshape(values, shape), b.reshape(b.convert(positions, torch.int64), shape)


def _sort(b: Builder, x: Value, dim: int, descending: bool) -> tuple[Value, Value]:
    if x.numel == 0 or x.ndim == 0:
        return x, b.constant(0, torch.int64, x.shape)
    return _finish(b, *sort_along(b, x, wrap_dim(dim, x.ndim), descending))


@lowers(aten.sort.default)
def sort(b: Builder, x: Value, dim: int, descending: bool) -> tuple[Value, Value]:
    return _sort(b, x, dim, descending)


@lowers(aten.sort.stable)
def sort_stable(b: Builder, x: Value, *, dim: int, descending: bool) -> tuple[Value, Value]:
    return _sort(b, x, dim, descending)


# -- topk ----------------------------------------------------------------------------------------


def _top_k(b: Builder, x: Value, k: int, largest: bool) -> tuple[Value, Value]:
    """Along the last dimension, by the compiler's top-k, which orders floats by their bits."""
    wide = b.convert(x, torch.float32)
    # NaN must be the greatest whatever its sign bit; for the smallest it must come last.
    if largest:
        wide = b.select(b.is_nan(wide), float("nan"), wide)
    else:
        negative_nan = b.bitcast_convert(b.constant(0xFFC00000, torch.int32), torch.float32)
        wide = b.select(b.is_nan(wide), negative_nan, b.negate(wide))
    shape = (*x.shape[:-1], k)
    types = [(shape, torch.float32), (shape, torch.int32)]
    values, positions = b.results("chlo.top_k", [wide], types, f"k = {k} : i64")
    values = values if largest else b.negate(values)
    return b.convert(values, x.dtype), positions


@lowers(aten.topk.default)
def topk(b: Builder, x: Value, k: int, dim: int, largest: bool, sorted: bool) -> tuple[Value, Value]:
    if b.out[0].numel() == 0:
        return b.constant(0, x.dtype, b.out[0].shape), b.constant(0, torch.int64, b.out[0].shape)
    if x.ndim == 0:
        return x, b.constant(0, torch.int64)
    dim, last = wrap_dim(dim, x.ndim), x.ndim - 1
    n = x.shape[dim]
    if x.dtype in _TOP_K and (k <= 8 or k <= n // 16):
        order = list(range(x.ndim))
        order[dim], order[last] = last, dim
        values, positions = _top_k(b, b.transpose(x, order), k, largest)
        return _finish(b, b.transpose(values, order), b.transpose(positions, order))
    positions = b.slice_dim(sort_positions(b, x, dim, descending=largest), dim, 0, k)
    return _finish(b, take_along(b, x, positions, dim), positions)


# -- one element of the order ----------------------------------------------------------------------


def _pick(b: Builder, x: Value, positions: Value, dim: int, rank: Value) -> tuple[Value, Value]:
    """The element of the given rank, where `rank` has size 1 along `dim`."""
    position = take_along(b, positions, b.convert(rank, positions.dtype), dim)
    return take_along(b, x, position, dim), position


@lowers(aten.kthvalue.default)
def kthvalue(b: Builder, x: Value, k: int, dim: int, keepdim: bool) -> tuple[Value, Value]:
    if x.ndim == 0 or x.numel == 0:
        return _finish(b, x, b.constant(0, torch.int64, x.shape))
    dim = wrap_dim(dim, x.ndim)
    position = b.slice_dim(sort_positions(b, x, dim), dim, k - 1, k)
    return _finish(b, take_along(b, x, position, dim), position)


def _median(b: Builder, x: Value, dim: int, ignore_nan: bool) -> tuple[Value, Value]:
    """The lower median. NaN: ignored, or the result if there is one. `x` is not empty along `dim`."""
    n = x.shape[dim]
    positions = sort_positions(b, x, dim)
    shape = [1 if d == dim else size for d, size in enumerate(x.shape)]
    if not x.dtype.is_floating_point:
        return _pick(b, x, positions, dim, b.constant((n - 1) // 2, torch.int32, shape))
    # NaN come last in the order.
    missing = b.reduce(b.convert(b.is_nan(x), torch.int32), [dim], "add", keepdim=True)
    present = b.subtract(n, missing)
    if ignore_nan:
        rank = b.shift_right_arithmetic(b.maximum(b.subtract(present, 1), 0), 1)
    else:
        rank = b.select(b.compare(missing, 0, "GT"), present, (n - 1) // 2)
    return _pick(b, x, positions, dim, rank)


def _median_along(b: Builder, x: Value, dim: int, ignore_nan: bool) -> tuple[Value, Value]:
    if x.ndim == 0:
        return x, b.constant(0, torch.int64)
    if x.numel == 0:
        return b.constant(0, x.dtype, b.out[0].shape), b.constant(0, torch.int64, b.out[0].shape)
    return _finish(b, *_median(b, x, wrap_dim(dim, x.ndim), ignore_nan))


def _median_of_all(b: Builder, x: Value, ignore_nan: bool) -> Value:
    if x.numel == 0:
        # An integer has no NaN; the smallest one is what PyTorch's conversion of NaN gives.
        missing = float("nan") if x.dtype.is_floating_point else torch.iinfo(x.dtype).min
        return b.constant(missing, x.dtype)
    value, _ = _median(b, b.reshape(x, (x.numel,)), 0, ignore_nan)
    return b.reshape(value, ())


@lowers(aten.median.dim)
def median_dim(b: Builder, x: Value, dim: int, keepdim: bool) -> tuple[Value, Value]:
    return _median_along(b, x, dim, ignore_nan=False)


@lowers(aten.nanmedian.dim)
def nanmedian_dim(b: Builder, x: Value, dim: int, keepdim: bool) -> tuple[Value, Value]:
    return _median_along(b, x, dim, ignore_nan=True)


@lowers(aten.median.default)
def median(b: Builder, x: Value) -> Value:
    return _median_of_all(b, x, ignore_nan=False)


@lowers(aten.nanmedian.default)
def nanmedian(b: Builder, x: Value) -> Value:
    return _median_of_all(b, x, ignore_nan=True)


@lowers(aten.mode.default)
def mode(b: Builder, x: Value, dim: int, keepdim: bool) -> tuple[Value, Value]:
    """The most frequent value, the smallest of several; where it occurs last."""
    if x.ndim == 0:
        return x, b.constant(0, torch.int64)
    if x.numel == 0:
        return b.constant(0, x.dtype, b.out[0].shape), b.constant(0, torch.int64, b.out[0].shape)
    dim = wrap_dim(dim, x.ndim)
    n = x.shape[dim]
    positions = sort_positions(b, x, dim)
    key = take_along(b, order_key(b, x), positions, dim)
    place = b.iota(x.shape, dim, torch.int32)
    # A run of equal values begins where the key differs from its left neighbour.
    before = b.slice_dim(key, dim, 0, n - 1)
    begins = b.compare(b.slice_dim(key, dim, 1, n), before, "NE")
    low = [1 if d == dim else 0 for d in range(x.ndim)]
    begins = b.pad(begins, low, [0] * x.ndim, True)
    begin = running(b, b.select(begins, place, 0), dim, "amax")
    length = b.add(b.subtract(place, begin), 1)
    longest = b.reduce(length, [dim], "maximum", keepdim=True)
    best = b.select(b.compare(length, b.broadcast_to(longest, x.shape), "EQ"), place, n)
    return _finish(b, *_pick(b, x, positions, dim, b.reduce(best, [dim], "minimum", keepdim=True)))
