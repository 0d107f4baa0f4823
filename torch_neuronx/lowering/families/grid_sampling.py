# SPDX-License-Identifier: Apache-2.0
"""grid_sampler: reads an image at real-valued positions, given in [-1, 1] with x before y (before z)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch

from ...stablehlo import Builder, Value
from ..promotion import opmath
from ..registry import lowers

aten = torch.ops.aten

_BILINEAR, _NEAREST, _BICUBIC = 0, 1, 2
_ZEROS, _BORDER, _REFLECTION = 0, 1, 2


def _reflect(b: Builder, x: Value, low: float, high: float) -> Value:
    """Positions folded back and forth between two mirrors."""
    span = high - low
    if span == 0:
        return b.constant(0, x.dtype, x.shape)
    x = b.abs(b.subtract(x, low))
    rest = b.remainder(x, span)
    odd = b.compare(b.remainder(b.floor(b.divide(x, span)), 2.0), 1.0, "EQ")
    return b.add(b.select(odd, b.subtract(span, rest), rest), low)


def _inside(b: Builder, x: Value, size: int, padding: int, align_corners: bool) -> Value:
    """The position that a padding mode puts in the place of one outside of the image."""
    if padding == _ZEROS:
        return x
    if padding == _REFLECTION:
        x = _reflect(b, x, 0.0, size - 1.0) if align_corners else _reflect(b, x, -0.5, size - 0.5)
    # NaN reads the first element, as ATen's clamp makes it.
    x = b.select(b.is_nan(x), 0.0, x)
    return b.clamp(0.0, x, size - 1.0)


def _positions(b: Builder, grid: Value, sizes: Sequence[int], align_corners: bool) -> list[Value]:
    """Positions in elements, one value of shape (N, points) for each spatial dimension of the image."""
    batch, points = grid.shape[0], math.prod(grid.shape[1:-1])
    flat = b.reshape(grid, (batch, points, len(sizes)))
    result = []
    for d, size in enumerate(sizes):
        # The grid names the last dimension first.
        x = b.reshape(b.slice_dim(flat, 2, len(sizes) - 1 - d, len(sizes) - d), (batch, points))
        if align_corners:
            result.append(b.multiply(b.add(x, 1.0), (size - 1) / 2))
        else:
            result.append(b.divide(b.subtract(b.multiply(b.add(x, 1.0), float(size)), 1.0), 2.0))
    return result


def _read(b: Builder, image: Value, sizes: Sequence[int], corner: Sequence[Value]) -> Value:
    """(N, C, points): elements of `image` (N, C, area) at whole positions, 0 outside."""
    batch, channels, _ = image.shape
    shape = corner[0].shape
    flat = inside = None
    for size, x in zip(sizes, corner, strict=True):
        within = b.and_(b.compare(x, 0.0, "GE"), b.compare(x, float(size - 1), "LE"))
        index = b.convert(b.select(within, x, 0.0), torch.int32)
        flat = index if flat is None else b.add(b.multiply(flat, size), index)
        inside = within if inside is None else b.and_(inside, within)
    read = b.gather(
        image,
        flat,
        (batch, channels, shape[1]),
        offset_dims=[1],
        collapsed_slice_dims=[2],
        start_index_map=[2],
        index_vector_dim=2,
        slice_sizes=[1, channels, 1],
        operand_batching_dims=[0],
        start_indices_batching_dims=[0],
    )
    return b.select(b.reshape(inside, (batch, 1, shape[1])), read, 0.0)


def _cubic_weights(b: Builder, t: Value) -> list[Value]:
    """Keys' kernel with a = -0.75 at distances t + 1, t, 1 - t and 2 - t."""
    a = -0.75

    def near(x):
        return b.add(b.multiply(b.multiply(b.subtract(b.multiply(x, a + 2), a + 3), x), x), 1.0)

    def far(x):
        cubic = b.multiply(b.add(b.multiply(b.subtract(b.multiply(x, a), 5 * a), x), 8 * a), x)
        return b.subtract(cubic, 4 * a)

    rest = b.subtract(1.0, t)
    return [far(b.add(t, 1.0)), near(t), near(rest), far(b.add(rest, 1.0))]


def _grid_sampler(b: Builder, x: Value, grid: Value, interpolation: int, padding: int, align_corners: bool) -> Value:
    (out,) = b.out
    if out.numel() == 0:
        return b.constant(0, out.dtype, tuple(out.shape))
    dtype = opmath(x.dtype)
    sizes = x.shape[2:]
    image = b.reshape(b.convert(x, dtype), (*x.shape[:2], math.prod(sizes)))
    where = _positions(b, b.convert(grid, dtype), sizes, align_corners)

    def bounded(values):
        return [_inside(b, v, size, padding, align_corners) for v, size in zip(values, sizes, strict=True)]

    if interpolation == _NEAREST:
        result = _read(b, image, sizes, [b.round_nearest_even(v) for v in bounded(where)])
        return b.convert(b.reshape(result, tuple(out.shape)), out.dtype)
    if interpolation == _BILINEAR:
        where = bounded(where)
    low = [b.floor(v) for v in where]
    share = [b.subtract(v, f) for v, f in zip(where, low, strict=True)]
    if interpolation == _BILINEAR:
        offsets, weights = range(2), [[b.subtract(1.0, t), t] for t in share]
    else:
        offsets, weights = range(-1, 3), [_cubic_weights(b, t) for t in share]
    total = None
    for choice in itertools.product(range(len(offsets)), repeat=len(sizes)):
        corner = [b.add(f, float(offsets[k])) if offsets[k] else f for f, k in zip(low, choice, strict=True)]
        corner = bounded(corner) if interpolation == _BICUBIC else corner
        weight = None
        for of_dim, k in zip(weights, choice, strict=True):
            weight = of_dim[k] if weight is None else b.multiply(weight, of_dim[k])
        value = _read(b, image, sizes, corner)
        term = b.multiply(value, b.reshape(weight, (value.shape[0], 1, value.shape[2])))
        total = term if total is None else b.add(total, term)
    return b.convert(b.reshape(total, tuple(out.shape)), out.dtype)


lowers(aten.grid_sampler_2d.default, aten.grid_sampler_3d.default)(_grid_sampler)
