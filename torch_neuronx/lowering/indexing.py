# SPDX-License-Identifier: Apache-2.0
"""Reading and writing at computed positions: the pieces that the indexing and sorting families share."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

from ..stablehlo import Builder, Value
from ..stablehlo.structured import highest, lowest
from .promotion import opmath


def wrap_dim(dim: int, ndim: int) -> int:
    """A dimension counted from the end made non-negative; a 0-dim tensor counts as having one."""
    return dim % max(ndim, 1)


def at_least_1d(b: Builder, x: Value) -> Value:
    return x if x.ndim else b.reshape(x, (1,))


def row_major_strides(shape: Sequence[int]) -> list[int]:
    """Strides, in elements, of a contiguous tensor."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return strides[::-1]


def wrap_negative(b: Builder, index: Value, limit: int) -> Value:
    """Negative elements count from the end. Nothing is checked."""
    return b.select(b.compare(index, 0, "LT"), b.add(index, limit), index)


def take_rows(b: Builder, x: Value, index: Value, dim: int) -> Value:
    """`x` with dimension `dim` replaced by the dimensions of `index`: one slice of `x` an element."""
    shape = x.shape[:dim] + index.shape + x.shape[dim + 1 :]
    if math.prod(shape) == 0:
        return b.constant(0, x.dtype, shape)
    offset_dims = [d for d in range(len(shape)) if d < dim or d >= dim + index.ndim]
    sizes = [1 if d == dim else n for d, n in enumerate(x.shape)]
    return b.gather(x, index, shape, offset_dims, [dim], [dim], index.ndim, sizes)


def take_along(b: Builder, x: Value, index: Value, dim: int) -> Value:
    """`x[..., index[...], ...]` element by element; other dimensions of `x` may be longer than the index's."""
    if index.numel == 0:
        return b.constant(0, x.dtype, index.shape)
    limits = [n if d == dim else index.shape[d] for d, n in enumerate(x.shape)]
    x = b.slice(x, [0] * x.ndim, limits)
    batch = [d for d in range(x.ndim) if d != dim]
    return b.gather(x, index, index.shape, [], [dim], [dim], x.ndim, [1] * x.ndim, batch, batch)


def flat_positions(b: Builder, index: Value, shape: Sequence[int], dim: int) -> Value:
    """Where in a row-major tensor of `shape` the elements picked along `dim` lie: a 1-D value."""
    strides = row_major_strides(shape)
    position = b.multiply(index, strides[dim]) if strides[dim] != 1 else index
    for d, n in enumerate(index.shape):
        if d != dim and n > 1:
            offset = b.multiply(b.iota(index.shape, d, index.dtype), strides[d])
            position = b.add(position, offset)
    return b.reshape(position, (index.numel,))


# -- combining ---------------------------------------------------------------------------------

Combine = Callable[[Builder, Value, Value], Value]


def _greater(b: Builder, old: Value, new: Value) -> Value:
    # Spelled out, since the compiler's maximum loses NaN in some of its loops.
    keep = b.compare(old, new, "GT")
    return b.select(b.or_(keep, b.is_nan(old)) if old.dtype.is_floating_point else keep, old, new)


def _smaller(b: Builder, old: Value, new: Value) -> Value:
    keep = b.compare(old, new, "LT")
    return b.select(b.or_(keep, b.is_nan(old)) if old.dtype.is_floating_point else keep, old, new)


COMBINE: dict[str, Combine] = {
    "replace": lambda b, old, new: new,
    "sum": lambda b, old, new: b.add(old, new),
    "prod": lambda b, old, new: b.multiply(old, new),
    "amax": _greater,
    "amin": _smaller,
}
COMBINE["mean"] = COMBINE["sum"]
COMBINE["add"] = COMBINE["sum"]
COMBINE["multiply"] = COMBINE["prod"]


def identity(kind: str, dtype: torch.dtype) -> bool | int | float:
    """What leaves the other operand of the combination `kind` as it is."""
    if kind in ("amax", "amin"):
        return lowest(dtype) if kind == "amax" else highest(dtype)
    return 1 if kind in ("prod", "multiply") else 0


Scatter = Callable[[Value, Value, str], Value]


def reduce_into(b: Builder, x: Value, source: Value, kind: str, include_self: bool, scatter: Scatter) -> Value:
    """`x` combined with `source` where `scatter(x, source, kind)` puts it, in the arithmetic PyTorch uses.

    kind: sum prod mean amax amin, add multiply. Without `include_self`, old elements that are hit do not count.
    """
    dtype = x.dtype
    wide = opmath(dtype)
    x, source = b.convert(x, wide), b.convert(source, wide)
    if not include_self:
        x = scatter(x, b.constant(identity(kind, wide), wide, source.shape), "replace")
    result = scatter(x, source, kind)
    if kind == "mean":
        ones = b.constant(1, wide, source.shape)
        count = scatter(b.constant(1 if include_self else 0, wide, x.shape), ones, "sum")
        count = b.maximum(count, 1)
        result = _floor_divide(b, result, count)
    return b.convert(result, dtype)


def _floor_divide(b: Builder, x: Value, y: Value) -> Value:
    """x / y for positive y; rounded down for integers."""
    quotient = b.divide(x, y)
    if x.dtype.is_floating_point:
        return quotient
    below = b.compare(b.remainder(x, y), 0, "LT")
    return b.subtract(quotient, b.convert(below, x.dtype))


# -- writing -----------------------------------------------------------------------------------


def put_flat(b: Builder, x: Value, position: Value, source: Value, kind: str, unique: bool = False) -> Value:
    """`x` with 1-D `source` combined at flat positions; positions outside of it are dropped."""
    if source.numel == 0 or x.numel == 0:
        return x
    flat = b.reshape(x, (x.numel,))
    combine = COMBINE[kind]
    result = b.scatter(flat, position, source, lambda old, new: combine(b, old, new), [], [0], [0], 1, unique)
    return b.reshape(result, x.shape)


def put_along(b: Builder, x: Value, index: Value, source: Value, dim: int, kind: str) -> Value:
    """Element by element along `dim`; `source` has the shape of `index`."""
    position = flat_positions(b, index, x.shape, dim)
    return put_flat(b, x, position, b.reshape(source, (source.numel,)), kind)


def put_rows(b: Builder, x: Value, index: Value, source: Value, dim: int, kind: str, unique: bool = False) -> Value:
    """Slices of `source` (its dimensions from `dim` on are those of `index`) combined into slices of `x`."""
    if source.numel == 0 or x.numel == 0:
        return x
    if x.ndim == 1 or math.prod(x.shape) == x.shape[dim]:
        return b.reshape(
            put_flat(b, x, b.reshape(index, (index.numel,)), b.reshape(source, (source.numel,)), kind, unique), x.shape
        )
    combine = COMBINE[kind]
    window = [d for d in range(source.ndim) if d < dim or d >= dim + index.ndim]
    return b.scatter(x, index, source, lambda old, new: combine(b, old, new), window, [dim], [dim], index.ndim, unique)


# -- running sums ------------------------------------------------------------------------------


def running(b: Builder, x: Value, dim: int, kind: str) -> Value:
    """Inclusive running `kind` (sum, amax, amin) along `dim`."""
    n = x.shape[dim]
    if n <= 1:
        return x
    combine = COMBINE[kind]
    window = [n if d == dim else 1 for d in range(x.ndim)]
    padding = [(n - 1, 0) if d == dim else (0, 0) for d in range(x.ndim)]
    initial = b.constant(identity(kind, x.dtype), x.dtype)
    ones = [1] * x.ndim
    return b.reduce_window([x], [initial], window, ones, padding, lambda a, e: combine(b, a, e))[0]
