# SPDX-License-Identifier: Apache-2.0
"""Pooling over windows: maximum and average, forward and backward.

A window of two or three dimensions is reduced one dimension after the other, which takes
kh + kw steps an element instead of kh * kw. Half types are averaged in float32.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch

from ...stablehlo import Builder, Value
from ...stablehlo.structured import lowest
from ..promotion import opmath
from ..registry import lowers

aten = torch.ops.aten


class Window(NamedTuple):
    """The windows along one dimension: `size` elements become `count` windows."""

    dim: int
    size: int
    count: int
    kernel: int
    stride: int
    padding: int
    dilation: int = 1

    @property
    def padding_after(self) -> int:
        """Padding behind the last element so that exactly `count` windows fit; negative: cut off."""
        span = (self.count - 1) * self.stride + (self.kernel - 1) * self.dilation + 1
        return span - self.size - self.padding

    def lengths(self, count_padding: bool) -> list[int]:
        """Elements that each window averages over. ceil_mode's overhang never counts."""
        result = []
        for index in range(self.count):
            start = index * self.stride - self.padding
            end = min(start + self.kernel, self.size + self.padding)
            result.append(end - start if count_padding else min(end, self.size) - max(start, 0))
        return result


def _windows(shape, counts, kernel, stride, padding, dilation=(1,)) -> list[Window]:
    """One window a spatial dimension, the last ones of `shape`; a list of one size stands for all of them."""
    rank = len(counts)
    stride = stride or kernel
    lists = [list(sizes) * rank if len(sizes) == 1 else list(sizes) for sizes in (kernel, stride, padding, dilation)]
    dims = range(len(shape) - rank, len(shape))
    return [Window(d, shape[d], counts[i], *(sizes[i] for sizes in lists)) for i, d in enumerate(dims)]


def _reduce_window(
    b: Builder, operands: Sequence[Value], initial: Sequence[Value], window: Window, body
) -> tuple[Value, ...]:
    rank = operands[0].ndim

    def at(value, other):
        return [value if d == window.dim else other for d in range(rank)]

    padding = at((window.padding, window.padding_after), (0, 0))
    sizes, strides, dilations = at(window.kernel, 1), at(window.stride, 1), at(window.dilation, 1)
    return b.reduce_window(operands, initial, sizes, strides, padding, body, window_dilations=dilations)


# -- maximum ------------------------------------------------------------------------------------


def _maximum(b: Builder, x: Value, windows: Sequence[Window]) -> Value:
    def body(a, e):
        keep = b.compare(a, e, "GE")
        if x.dtype.is_floating_point:
            keep = b.or_(keep, b.is_nan(a))
        return b.select(keep, a, e)

    for window in windows:
        (x,) = _reduce_window(b, [x], [b.constant(lowest(x.dtype), x.dtype)], window, body)
    return x


def larger(b: Builder, a: Value, at_a: Value, e: Value, at_e: Value) -> tuple[Value, Value]:
    """The larger of two elements with its position: of equal ones the first, of NaNs the last, as ATen's loop finds."""
    take = b.or_(b.compare(e, a, "GT"), b.and_(b.compare(e, a, "EQ"), b.compare(at_e, at_a, "LT")))
    if a.dtype.is_floating_point:
        later = b.or_(b.compare(a, a, "EQ"), b.compare(at_e, at_a, "GT"))
        take = b.or_(take, b.and_(b.is_nan(e), later))
    return b.select(take, e, a), b.select(take, at_e, at_a)


def positions(b: Builder, x: Value, spatial: int) -> tuple[Value, Value]:
    """Row-major position of every element within the last `spatial` dimensions, and one behind all of them."""
    sizes = x.shape[x.ndim - spatial :]
    dtype = torch.int32 if math.prod(sizes) < 2**31 - 1 else torch.int64
    flat = b.reshape(b.iota((math.prod(sizes),), 0, dtype), sizes)
    return b.broadcast_to(flat, x.shape), b.constant(torch.iinfo(dtype).max, dtype)


def _maximum_with_indices(b, x, kernel_size, stride, padding, dilation, ceil_mode) -> tuple[Value, Value]:
    values, indices = b.out
    if values.numel() == 0:
        return tuple(b.constant(0, meta.dtype, tuple(meta.shape)) for meta in b.out)
    spatial = len(kernel_size)
    position, behind = positions(b, x, spatial)
    initial = [b.constant(lowest(x.dtype), x.dtype), behind]
    pair = (x, position)
    counts = values.shape[x.ndim - spatial :]
    for window in _windows(x.shape, counts, kernel_size, stride, padding, dilation):
        pair = _reduce_window(b, pair, initial, window, lambda a, i, e, j: larger(b, a, i, e, j))
    return pair[0], b.convert(pair[1], indices.dtype)


def _max_pool(b, x, kernel_size, stride, padding, dilation, ceil_mode) -> Value:
    (out,) = b.out
    if out.numel() == 0:
        return b.constant(0, out.dtype, tuple(out.shape))
    counts = out.shape[x.ndim - len(kernel_size) :]
    return _maximum(b, x, _windows(x.shape, counts, kernel_size, stride, padding, dilation))


for _operator in (aten.max_pool2d_with_indices, aten.max_pool3d_with_indices):
    lowers(_operator.default)(_maximum_with_indices)
for _operator in (aten.max_pool1d, aten.max_pool2d, aten.max_pool3d):
    lowers(_operator.default, whole=True)(_max_pool)


def scatter_to_positions(b: Builder, grad: Value, indices: Value, spatial: int) -> Value:
    """Adds every gradient at its position within the last `spatial` dimensions of the result."""
    (out,) = b.out
    if grad.numel == 0 or out.numel() == 0:
        return b.constant(0, out.dtype, tuple(out.shape))
    grad = b.convert(grad, opmath(grad.dtype))
    images = math.prod(grad.shape[: grad.ndim - spatial])
    area = out.numel() // images
    dtype = torch.int32 if out.numel() < 2**31 else torch.int64
    per_image = (images, grad.numel // images)
    first = b.multiply(b.iota(per_image, 0, dtype), area)
    flat = b.add(first, b.reshape(b.convert(indices, dtype), per_image))
    zeros = b.constant(0, grad.dtype, (out.numel(),))
    flat, grad = b.reshape(flat, (flat.numel, 1)), b.reshape(grad, (grad.numel,))
    total = b.scatter(zeros, flat, grad, lambda a, e: b.add(a, e), [], [0], [0], 1)
    return b.convert(b.reshape(total, tuple(out.shape)), out.dtype)


@lowers(aten.max_pool2d_with_indices_backward.default, aten.max_pool3d_with_indices_backward.default)
def max_pool_backward(b, grad, x, kernel_size, stride, padding, dilation, ceil_mode, indices):
    return scatter_to_positions(b, grad, indices, len(kernel_size))


# -- average ------------------------------------------------------------------------------------


def _divide_by_lengths(b, x, windows: Sequence[Window], count_padding: bool, divisor_override: int | None) -> Value:
    """Sums of windows to averages. The length of a window is a product of one length a dimension."""
    if divisor_override is not None:
        return b.divide(x, divisor_override)
    constant = 1
    divisor = None
    for window in windows:
        lengths = window.lengths(count_padding)
        if len(set(lengths)) == 1:
            constant *= lengths[0]
            continue
        shape = [window.count if d == window.dim else 1 for d in range(x.ndim)]
        factor = b.reshape(b.constant_array(lengths, x.dtype), shape)
        divisor = factor if divisor is None else b.multiply(divisor, factor)
    if divisor is None:
        return b.divide(x, constant)
    return b.divide(x, divisor if constant == 1 else b.multiply(divisor, constant))


def _average(b, x, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override=None):
    (out,) = b.out
    if out.numel() == 0:
        return b.constant(0, out.dtype, tuple(out.shape))
    windows = _windows(x.shape, out.shape[x.ndim - len(kernel_size) :], kernel_size, stride, padding)
    total = b.convert(x, opmath(x.dtype))
    for window in windows:
        (total,) = _reduce_window(b, [total], [b.constant(0, total.dtype)], window, lambda a, e: b.add(a, e))
    return b.convert(_divide_by_lengths(b, total, windows, count_include_pad, divisor_override), out.dtype)


for _operator in (aten.avg_pool2d, aten.avg_pool3d):
    lowers(_operator.default)(_average)
lowers(aten.avg_pool1d.default, whole=True)(_average)


def _spread(b: Builder, grad: Value, window: Window) -> Value:
    """Every element of a window gets the window's gradient; gradients of overlapping windows add up."""
    dim = window.dim
    low, high = [0] * grad.ndim, [0] * grad.ndim
    if window.stride == window.kernel:
        shape = (*grad.shape[: dim + 1], window.kernel, *grad.shape[dim + 1 :])
        grad = b.broadcast_in_dim(grad, shape, [d for d in range(grad.ndim + 1) if d != dim + 1])
        grad = b.reshape(grad, (*shape[:dim], shape[dim] * window.kernel, *shape[dim + 2 :]))
        low[dim], high[dim] = -window.padding, -window.padding_after
        return b.pad(grad, low, high)
    interior = [0] * grad.ndim
    low[dim], high[dim] = window.kernel - 1 - window.padding, window.kernel - 1 - window.padding_after
    interior[dim] = window.stride - 1
    spread = b.pad(grad, low, high, 0, interior)
    sliding = Window(dim, spread.shape[dim], window.size, window.kernel, 1, 0)
    return _reduce_window(b, [spread], [b.constant(0, grad.dtype)], sliding, lambda a, e: b.add(a, e))[0]


@lowers(aten.avg_pool2d_backward.default, aten.avg_pool3d_backward.default)
def avg_pool_backward(b, grad, x, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override):
    (out,) = b.out
    if grad.numel == 0 or out.numel() == 0:
        return b.constant(0, out.dtype, tuple(out.shape))
    windows = _windows(x.shape, grad.shape[x.ndim - len(kernel_size) :], kernel_size, stride, padding)
    grad = b.convert(grad, opmath(grad.dtype))
    grad = _divide_by_lengths(b, grad, windows, count_include_pad, divisor_override)
    for window in windows:
        grad = _spread(b, grad, window)
    return b.convert(grad, out.dtype)
