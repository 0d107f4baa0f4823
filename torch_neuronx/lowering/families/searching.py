# SPDX-License-Identifier: Apache-2.0
"""Finding values in other tensors: searchsorted, bucketize, isin, histograms of static shape."""

from __future__ import annotations

import torch

from ...stablehlo import Builder, Value
from ..indexing import put_flat, take_along
from ..ordering import sort_along
from ..pointwise import Operand
from ..promotion import opmath, result_type
from ..registry import lowers

aten = torch.ops.aten

# Up to this many values to compare with, comparing with all of them beats a search.
_COMPARE_ALL = 64


def _search(b: Builder, ordered: Value, x: Value, right: bool) -> Value:
    """How many elements of `ordered` (1-D, or rows like those of `x`) lie before each of `x`; int32."""
    n = ordered.shape[-1]
    # "Not at or above" rather than "below": NaN comes after everything.
    at_or_above = "GT" if right else "GE"
    if n <= _COMPARE_ALL:
        rows = ordered if ordered.ndim == 1 else b.reshape(ordered, (*ordered.shape[:-1], 1, n))
        shape = (*x.shape, n)
        before = b.not_(
            b.compare(b.broadcast_to(rows, shape), b.broadcast_to(b.reshape(x, (*x.shape, 1)), shape), at_or_above)
        )
        return b.reduce(b.convert(before, torch.int32), [x.ndim], "add")
    dtype = torch.int32 if n < 1 << 31 else torch.int64
    low = b.constant(0, dtype, x.shape)
    high = b.constant(n, dtype, x.shape)
    for _ in range(n.bit_length()):
        middle = b.shift_right_arithmetic(b.add(low, high), 1)
        clamped = b.minimum(middle, n - 1)
        if ordered.ndim == 1:
            here = b.gather(ordered, clamped, x.shape, [], [0], [0], x.ndim, [1])
        else:
            here = take_along(b, ordered, clamped, x.ndim - 1)
        before = b.and_(b.not_(b.compare(here, x, at_or_above)), b.compare(low, high, "LT"))
        low, high = b.select(before, b.add(middle, 1), low), b.select(before, high, b.minimum(middle, high))
    return low


def _positions(b: Builder, ordered: Value, x: Operand, right: bool) -> Value:
    out = b.out[0]
    dtype = result_type(ordered, x)
    ordered, x = b.convert(ordered, dtype), b.value(x, dtype)
    if out.numel() == 0 or ordered.numel == 0:
        return b.constant(0, out.dtype, out.shape)
    scalar = x.ndim == 0
    x = b.reshape(x, (1,)) if scalar else x
    found = _search(b, ordered, x, right)
    return b.reshape(b.convert(found, out.dtype), out.shape)


@lowers(aten.searchsorted.Tensor, aten.searchsorted.Scalar)
def searchsorted(
    b: Builder, ordered: Value, x: Operand, *, right: bool, side: str | None, sorter: Value | None
) -> Value:
    if sorter is not None:
        sorter = b.check_index(sorter, ordered.shape[-1])
        ordered = take_along(b, ordered, sorter, ordered.ndim - 1)
    return _positions(b, ordered, x, right or side == "right")


@lowers(aten.bucketize.Tensor, aten.bucketize.Scalar)
def bucketize(b: Builder, x: Operand, boundaries: Value, *, right: bool) -> Value:
    return _positions(b, boundaries, x, right)


@lowers(aten.isin.Tensor_Tensor, aten.isin.Tensor_Scalar, aten.isin.Scalar_Tensor)
def isin(b: Builder, elements: Operand, tests: Operand, *, invert: bool) -> Value:
    dtype = result_type(elements, tests)
    elements, tests = b.value(elements, dtype), b.value(tests, dtype)
    out = b.out[0]
    if out.numel() == 0 or tests.numel == 0:
        return b.constant(invert, torch.bool, out.shape)
    tests = b.reshape(tests, (tests.numel,))
    flat = b.reshape(elements, (elements.numel,))
    if tests.numel <= 4 * _COMPARE_ALL:
        shape = (flat.numel, tests.numel)
        same = b.compare(b.broadcast_to(b.reshape(flat, (flat.numel, 1)), shape), b.broadcast_to(tests, shape), "EQ")
        found = b.reduce(same, [1], "or")
    else:
        ordered, _ = sort_along(b, tests, 0)
        place = b.minimum(_search(b, ordered, flat, right=False), tests.numel - 1)
        found = b.compare(take_along(b, ordered, place, 0), flat, "EQ")
    found = b.reshape(found, out.shape)
    return b.not_(found) if invert else found


@lowers(aten.histc.default)
def histc(b: Builder, x: Value, bins: int, low: Operand, high: Operand) -> Value:
    """Counts in `bins` equal intervals of [low, high]; the data's own range when both are equal."""
    out = b.out[0]
    if x.numel == 0:
        return b.constant(0, out.dtype, out.shape)
    wide = opmath(out.dtype) if out.dtype.is_floating_point else torch.float64
    x = b.reshape(b.convert(x, wide), (x.numel,))
    low, high = b.value(low, wide), b.value(high, wide)
    own = b.compare(low, high, "EQ")
    low = b.select(own, b.reduce(x, [0], "minimum"), low)
    high = b.select(own, b.reduce(x, [0], "maximum"), high)
    # One single value: an interval of width 2 around it.
    point = b.compare(low, high, "EQ")
    low, high = b.select(point, b.subtract(low, 1), low), b.select(point, b.add(high, 1), high)
    place = b.floor(b.divide(b.multiply(b.subtract(x, low), float(bins)), b.subtract(high, low)))
    place = b.minimum(place, bins - 1.0)
    inside = b.and_(b.compare(x, low, "GE"), b.compare(x, high, "LE"))
    place = b.select(inside, b.convert(b.select(inside, place, 0.0), torch.int32), bins)
    counts = put_flat(b, b.constant(0, torch.int32, (bins,)), place, b.constant(1, torch.int32, place.shape), "sum")
    return b.convert(counts, out.dtype)
