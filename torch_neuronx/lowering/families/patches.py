# SPDX-License-Identifier: Apache-2.0
"""Moves between channels, space and patches: pixel and channel shuffles, im2col and col2im."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from ...stablehlo import Builder, Value
from ..promotion import opmath
from ..registry import lowers

aten = torch.ops.aten


@lowers(aten.pixel_shuffle.default)
def pixel_shuffle(b, x, upscale_factor):
    """(..., C r r, H, W) to (..., C, H r, W r)."""
    *batch, channels, height, width = x.shape
    n, r = len(batch), upscale_factor
    x = b.reshape(x, (*batch, channels // (r * r), r, r, height, width))
    x = b.transpose(x, [*range(n + 1), n + 3, n + 1, n + 4, n + 2])
    return b.reshape(x, tuple(b.out[0].shape))


@lowers(aten.pixel_unshuffle.default)
def pixel_unshuffle(b, x, downscale_factor):
    """(..., C, H r, W r) to (..., C r r, H, W)."""
    *batch, channels, height, width = x.shape
    n, r = len(batch), downscale_factor
    x = b.reshape(x, (*batch, channels, height // r, r, width // r, r))
    x = b.transpose(x, [*range(n + 1), n + 2, n + 4, n + 1, n + 3])
    return b.reshape(x, tuple(b.out[0].shape))


@lowers(aten.channel_shuffle.default, aten.native_channel_shuffle.default)
def channel_shuffle(b, x, groups):
    batch, channels, *spatial = x.shape
    split = b.reshape(x, (batch, groups, channels // groups, *spatial))
    return b.reshape(b.transpose(split, [0, 2, 1, *range(3, split.ndim)]), x.shape)


def _pairs(*lists: Sequence[int]) -> list[list[int]]:
    return [list(sizes) * 2 if len(sizes) == 1 else list(sizes) for sizes in lists]


def _counts(size: Sequence[int], kernel, dilation, padding, stride) -> list[int]:
    """Windows along each dimension."""
    return [
        (n + 2 * p - d * (k - 1) - 1) // s + 1
        for n, k, d, p, s in zip(size, kernel, dilation, padding, stride, strict=True)
    ]


def _tiles(size, kernel, dilation, padding, stride) -> bool:
    """Whether the windows partition the image."""
    whole = all(n % k == 0 for n, k in zip(size, kernel, strict=True))
    return whole and kernel == stride and padding == [0, 0] and dilation == [1, 1]


def _offsets(kernel: Sequence[int], dilation: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Where the elements of a window lie, row by row."""
    return ((i * dilation[0], j * dilation[1]) for i in range(kernel[0]) for j in range(kernel[1]))


@lowers(aten.im2col.default)
def im2col(b, x, kernel_size, dilation, padding, stride):
    """(N, C, H, W) to (N, C kh kw, windows)."""
    kernel, dilation, padding, stride = _pairs(kernel_size, dilation, padding, stride)
    *batch, channels, height, width = x.shape
    n = len(batch)
    rows, columns = _counts((height, width), kernel, dilation, padding, stride)
    if _tiles((height, width), kernel, dilation, padding, stride):
        x = b.reshape(x, (*batch, channels, rows, kernel[0], columns, kernel[1]))
        x = b.transpose(x, [*range(n + 1), n + 2, n + 4, n + 1, n + 3])
        return b.reshape(x, tuple(b.out[0].shape))
    around = [*[0] * (n + 1), *padding]
    x = b.pad(x, around, around)
    taps = []
    for i, j in _offsets(kernel, dilation):
        tap = b.slice_dim(x, n + 1, i, i + (rows - 1) * stride[0] + 1, stride[0])
        tap = b.slice_dim(tap, n + 2, j, j + (columns - 1) * stride[1] + 1, stride[1])
        taps.append(b.reshape(tap, (*batch, channels, 1, rows * columns)))
    return b.reshape(b.concatenate(taps, n + 1), tuple(b.out[0].shape))


@lowers(aten.col2im.default)
def col2im(b, x, output_size, kernel_size, dilation, padding, stride):
    """(N, C kh kw, windows) to (N, C, H, W): elements of overlapping windows add up."""
    kernel, dilation, padding, stride = _pairs(kernel_size, dilation, padding, stride)
    (out,) = b.out
    *batch, channels, height, width = out.shape
    n = len(batch)
    rows, columns = _counts((height, width), kernel, dilation, padding, stride)
    x = b.reshape(x, (*batch, channels, *kernel, rows, columns))
    if _tiles((height, width), kernel, dilation, padding, stride):
        x = b.transpose(x, [*range(n + 1), n + 3, n + 1, n + 4, n + 2])
        return b.reshape(x, tuple(out.shape))
    x = b.convert(x, opmath(x.dtype))
    total = None
    for index, (i, j) in enumerate(_offsets(kernel, dilation)):
        tap = b.slice_dim(x, n + 1, index // kernel[1], index // kernel[1] + 1)
        tap = b.slice_dim(tap, n + 2, index % kernel[1], index % kernel[1] + 1)
        tap = b.reshape(tap, (*batch, channels, rows, columns))
        tap = _place(b, tap, (i - padding[0], j - padding[1]), stride, (height, width))
        total = tap if total is None else b.add(total, tap)
    return b.convert(total, out.dtype)


def _place(b: Builder, x: Value, start: Sequence[int], stride: Sequence[int], size: Sequence[int]) -> Value:
    """The last two dimensions spread by `stride` from `start` on over zeros of `size`; what falls outside is cut."""
    lead = [0] * (x.ndim - 2)
    low, high, interior = [*lead], [*lead], [*lead]
    for n, first, step, total in zip(x.shape[-2:], start, stride, size, strict=True):
        low.append(first)
        high.append(total - first - ((n - 1) * step + 1))
        interior.append(step - 1)
    return b.pad(x, low, high, 0, interior)
