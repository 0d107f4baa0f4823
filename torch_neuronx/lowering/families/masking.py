# SPDX-License-Identifier: Apache-2.0
"""Reading and writing under a boolean mask, with results of static shape."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from ...stablehlo import Builder, Value
from ..indexing import put_flat, put_rows, running, take_rows
from ..pointwise import finish
from ..registry import lowers

aten = torch.ops.aten


@lowers(aten.masked_fill.Scalar, aten.masked_fill.Tensor)
def masked_fill(b: Builder, x: Value, mask: Value, value: Value | float) -> Value:
    return finish(b, b.select(b.convert(mask, torch.bool), b.value(value, x.dtype), x))


def _rank_in_mask(b: Builder, mask: Value) -> Value:
    """For every element of the 1-D mask: how many ones lie before it (its own place if it is a one)."""
    # The element counts of one tensor fit 32 bits but for the very largest.
    dtype = torch.int32 if mask.numel < 2**31 else torch.int64
    ones = b.convert(mask, dtype)
    return b.subtract(running(b, ones, 0, "sum"), ones)


@lowers(aten.masked_scatter.default)
def masked_scatter(b: Builder, x: Value, mask: Value, source: Value) -> Value:
    """The n-th one of the mask takes the n-th element of the source."""
    shape = tuple(b.out[0].shape)
    x = b.broadcast_to(x, shape)
    if x.numel == 0:
        return x
    mask = b.reshape(b.broadcast_to(b.convert(mask, torch.bool), shape), (x.numel,))
    if source.numel == 0:
        # Legal only when the mask has no ones.
        place = b.check_index(b.convert(mask, torch.int64), 1)
        return b.select(b.reshape(b.compare(place, 0, "NE"), shape), 0, x)
    place = b.check_index(b.select(mask, _rank_in_mask(b, mask), 0), source.numel)
    picked = take_rows(b, b.reshape(source, (source.numel,)), place, 0)
    return b.select(b.reshape(mask, shape), b.reshape(picked, shape), x)


@lowers(aten.masked_scatter_backward.default)
def masked_scatter_backward(b: Builder, grad: Value, mask: Value, sizes: Sequence[int]) -> Value:
    """The gradient's elements under the mask, in order, zeros behind them."""
    count = math.prod(sizes)
    if count == 0 or grad.numel == 0:
        return b.constant(0, grad.dtype, sizes)
    mask = b.reshape(b.broadcast_to(b.convert(mask, torch.bool), grad.shape), (grad.numel,))
    # What is not under the mask goes beyond the end, where scatter drops it.
    place = b.select(mask, _rank_in_mask(b, mask), count)
    zeros = b.constant(0, grad.dtype, (count,))
    return b.reshape(put_flat(b, zeros, place, b.reshape(grad, (grad.numel,)), "replace"), sizes)


@lowers(aten.nonzero_static.default)
def nonzero_static(b: Builder, x: Value, *, size: int, fill_value: int) -> Value:
    """The places of the first `size` elements that are not zero, one row each; `fill_value` in the rows left over."""
    out = tuple(b.out[0].shape)
    rest = b.constant(fill_value, torch.int64, out)
    if x.numel == 0 or 0 in out:
        return rest
    mask = b.reshape(b.convert(x, torch.bool), (x.numel,))
    row = b.select(mask, _rank_in_mask(b, mask), size)
    columns = [b.reshape(b.iota(x.shape, d), (x.numel, 1)) for d in range(x.ndim)]
    return put_rows(b, rest, row, b.concatenate(columns, 1), 0, "replace")
