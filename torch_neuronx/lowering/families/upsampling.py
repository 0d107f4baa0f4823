# SPDX-License-Identifier: Apache-2.0
"""Resampling of the spatial dimensions: nearest, linear, cubic and their antialiased forms, with gradients.

All of them are separable and linear: along one dimension each result is a weighted sum of a few
elements, `Taps`. Positions and weights are known when the program is built; they are computed as
ATen does, in single precision unless the operands are double.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from ...stablehlo import Builder, Value
from ..promotion import opmath
from ..registry import lowers

aten = torch.ops.aten


class Taps(NamedTuple):
    """Result i along a dimension is the sum over k of weights[k][i] * x[indices[k][i]]."""

    indices: list[list[int]]
    weights: list[list[float]]


def _rounding(dtype: torch.dtype) -> Callable[[float], float]:
    """Rounds a Python number as arithmetic in `dtype` does."""
    if dtype == torch.float64:
        return float
    return lambda x: struct.unpack("f", struct.pack("f", x))[0]


def _clamp(index: int, size: int) -> int:
    return min(max(index, 0), size - 1)


# -- where the results come from -------------------------------------------------------------------


def _step(size: int, count: int, scale: float | None) -> float:
    """Elements of the input a result; a scale factor that was given counts, not the quotient of the sizes."""
    return 1.0 / scale if scale is not None and scale > 0 else size / count


def _nearest_indices(size: int, count: int, scale: float | None, exact: bool) -> list[int]:
    single = _rounding(torch.float32)
    step = single(_step(size, count, scale))
    shift = 0.5 if exact else 0.0
    return [min(math.floor(single((i + shift) * step)), size - 1) for i in range(count)]


def _sources(size: int, count: int, align_corners: bool, scale: float | None, dtype: torch.dtype) -> list[float]:
    """Real-valued position in the input of every result."""
    rounded = _rounding(dtype)
    if align_corners:
        step = rounded((size - 1) / (count - 1)) if count > 1 else 0.0
        return [rounded(step * i) for i in range(count)]
    step = rounded(_step(size, count, scale))
    return [rounded(rounded(step * (i + 0.5)) - 0.5) for i in range(count)]


def _linear_taps(size: int, count: int, align_corners: bool, scale: float | None, dtype: torch.dtype) -> Taps:
    if size == count:
        return Taps([list(range(size))], [[1.0] * size])
    sources = [max(s, 0.0) for s in _sources(size, count, align_corners, scale, dtype)]
    low = [min(int(s), size - 1) for s in sources]
    share = [min(max(s - i, 0.0), 1.0) for s, i in zip(sources, low, strict=True)]
    return Taps([low, [min(i + 1, size - 1) for i in low]], [[1.0 - w for w in share], share])


def _cubic(x: float, a: float) -> float:
    """Keys' convolution kernel at distance x."""
    x = abs(x)
    if x <= 1:
        return ((a + 2) * x - (a + 3)) * x * x + 1
    return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a if x < 2 else 0.0


def _cubic_taps(size: int, count: int, align_corners: bool, scale: float | None, dtype: torch.dtype) -> Taps:
    if size == count:
        return Taps([list(range(size))], [[1.0] * size])
    sources = _sources(size, count, align_corners, scale, dtype)
    floors = [math.floor(s) for s in sources]
    shifts = range(-1, 3)
    indices = [[_clamp(f + k, size) for f in floors] for k in shifts]
    weights = [[_cubic(s - f - k, -0.75) for s, f in zip(sources, floors, strict=True)] for k in shifts]
    return Taps(indices, weights)


def _antialiased_taps(
    size: int, count: int, align_corners: bool, scale: float | None, kernel: Callable[[float], float], reach: float
) -> Taps:
    """A kernel of half-width `reach`, widened by the step where that shrinks the image (as PIL does)."""
    if align_corners:
        step = (size - 1) / (count - 1) if count > 1 else 0.0
    else:
        step = _step(size, count, scale)
    stretch = max(step, 1.0)
    reach *= stretch
    most = math.ceil(reach) * 2 + 1
    indices = [[0] * count for _ in range(most)]
    weights = [[0.0] * count for _ in range(most)]
    for i in range(count):
        centre = step * (i + 0.5)
        first = max(int(centre - reach + 0.5), 0)
        length = min(max(min(int(centre + reach + 0.5), size) - first, 0), most)
        row = [kernel((k + first - centre + 0.5) / stretch) for k in range(length)]
        total = sum(row) or 1.0
        for k, weight in enumerate(row):
            indices[k][i], weights[k][i] = first + k, weight / total
    return Taps(indices, weights)


# -- applying them -----------------------------------------------------------------------------------


def _along(shape: Sequence[int], dim: int, size: int) -> list[int]:
    return [size if d == dim else 1 for d in range(len(shape))]


def _take(b: Builder, x: Value, dim: int, indices: Sequence[int]) -> Value:
    """Elements of `x` at ascending positions along `dim`; a repetition or a strided slice where they are one."""
    size, count = x.shape[dim], len(indices)
    if count == size and list(indices) == list(range(size)):
        return x
    factor = count // size
    if count == factor * size and all(index == i // factor for i, index in enumerate(indices)):
        shape = (*x.shape[: dim + 1], factor, *x.shape[dim + 1 :])
        repeated = b.broadcast_in_dim(x, shape, [d for d in range(x.ndim + 1) if d != dim + 1])
        return b.reshape(repeated, (*x.shape[:dim], count, *x.shape[dim + 1 :]))
    step = indices[1] - indices[0] if count > 1 else 1
    if step > 0 and all(index == indices[0] + i * step for i, index in enumerate(indices)):
        return b.slice_dim(x, dim, indices[0], indices[-1] + 1, step)
    where = b.constant_array(indices, torch.int32)
    shape = (*x.shape[:dim], count, *x.shape[dim + 1 :])
    offset_dims = [d for d in range(x.ndim) if d != dim]
    sizes = [1 if d == dim else n for d, n in enumerate(x.shape)]
    return b.gather(x, where, shape, offset_dims, [dim], [dim], 1, sizes)


def _resample(b: Builder, x: Value, dim: int, taps: Taps) -> Value:
    result = None
    for indices, weights in zip(*taps, strict=True):
        term = _take(b, x, dim, indices)
        if set(weights) != {1.0}:
            shape = _along(x.shape, dim, len(weights))
            term = b.multiply(term, b.reshape(b.constant_array(weights, x.dtype), shape))
        result = term if result is None else b.add(result, term)
    return result


def _matrix(b: Builder, taps: Taps, size: int, dtype: torch.dtype) -> Value:
    """The taps as a (count, size) matrix."""
    count = len(taps.indices[0])
    columns = b.iota((count, size), 1, torch.int32)
    result = None
    for indices, weights in zip(*taps, strict=True):
        hit = b.compare(columns, b.reshape(b.constant_array(indices, torch.int32), (count, 1)), "EQ")
        weight = b.reshape(b.constant_array(weights, dtype), (count, 1))
        term = b.select(hit, weight, 0.0)
        result = term if result is None else b.add(result, term)
    return result


def _contract(b: Builder, x: Value, dim: int, matrix: Value, matrix_dim: int) -> Value:
    """Contracts dimension `dim` of `x` with that of the matrix, whose other one takes its place."""
    result = b.dot_general(x, matrix, ([dim], [matrix_dim]))
    return b.transpose(result, [*range(dim), x.ndim - 1, *range(dim, x.ndim - 1)])


def _resample_transposed(b: Builder, grad: Value, dim: int, taps: Taps, size: int) -> Value:
    """The adjoint of `_resample`: from gradients of the results to gradients of the `size` elements."""
    count = len(taps.indices[0])
    if len(taps.indices) == 1 and set(taps.weights[0]) == {1.0} and count % size == 0:
        factor = count // size
        if all(index == i // factor for i, index in enumerate(taps.indices[0])):
            split = b.reshape(grad, (*grad.shape[:dim], size, factor, *grad.shape[dim + 1 :]))
            return b.reduce(split, [dim + 1], "add")
    return _contract(b, grad, dim, _matrix(b, taps, size, grad.dtype), 0)


# -- rules --------------------------------------------------------------------------------------------

MakeTaps = Callable[[int, int, float | None, torch.dtype], Taps]
_SCALES = ("scales", "scales_d", "scales_h", "scales_w")


def _forward(b: Builder, x: Value, make_taps: MakeTaps, scales: Sequence[float | None]) -> Value:
    (out,) = b.out
    if out.numel() == 0:
        return b.constant(0, out.dtype, tuple(out.shape))
    integral = not x.dtype.is_floating_point
    x = b.convert(x, torch.float32 if integral else opmath(x.dtype))
    # The last dimension first: the result of the widest pass is computed once.
    for dim in reversed(range(2, x.ndim)):
        x = _resample(b, x, dim, make_taps(x.shape[dim], out.shape[dim], scales[dim - 2], x.dtype))
        if integral:
            # ATen keeps images of bytes as bytes between the passes.
            limits = torch.iinfo(out.dtype)
            x = b.clamp(limits.min, b.round_nearest_even(x), limits.max)
    return b.convert(x, out.dtype)


def _backward(b: Builder, grad: Value, make_taps: MakeTaps, scales: Sequence[float | None]) -> Value:
    (out,) = b.out
    if out.numel() == 0 or grad.numel == 0:
        return b.constant(0, out.dtype, tuple(out.shape))
    grad = b.convert(grad, opmath(grad.dtype))
    for dim in reversed(range(2, grad.ndim)):
        size = out.shape[dim]
        taps = make_taps(size, grad.shape[dim], scales[dim - 2], grad.dtype)
        grad = _resample_transposed(b, grad, dim, taps, size)
    return b.convert(grad, out.dtype)


def _nearest(exact: bool) -> MakeTaps:
    def make_taps(size, count, scale, dtype):
        return Taps([_nearest_indices(size, count, scale, exact)], [[1.0] * count])

    return make_taps


def _interpolating(taps: Callable, align_corners: bool) -> MakeTaps:
    return lambda size, count, scale, dtype: taps(size, count, align_corners, scale, dtype)


def _antialiasing(kernel: Callable[[float], float], reach: float, align_corners: bool) -> MakeTaps:
    return lambda size, count, scale, dtype: _antialiased_taps(size, count, align_corners, scale, kernel, reach)


def _triangle(x: float) -> float:
    return max(1.0 - abs(x), 0.0)


def _register_nearest(name: str, exact: bool) -> None:
    # Moving values needs no arithmetic: the forward rule keeps the dtype.
    @lowers(getattr(aten, name).default, static=_SCALES)
    def forward(b, x, output_size, *scales):
        (out,) = b.out
        if out.numel() == 0:
            return b.constant(0, out.dtype, tuple(out.shape))
        for dim in reversed(range(2, x.ndim)):
            x = _take(b, x, dim, _nearest_indices(x.shape[dim], out.shape[dim], scales[dim - 2], exact))
        return x

    @lowers(getattr(aten, name + "_backward").default, static=_SCALES)
    def backward(b, grad, output_size, input_size, *scales):
        return _backward(b, grad, _nearest(exact), scales)


def _register_interpolation(name: str, make: Callable[[bool], MakeTaps]) -> None:
    @lowers(getattr(aten, name).default, static=_SCALES)
    def forward(b, x, output_size, align_corners, *scales):
        return _forward(b, x, make(align_corners), scales)

    @lowers(getattr(aten, name + "_backward").default, static=_SCALES)
    def backward(b, grad, output_size, input_size, align_corners, *scales):
        return _backward(b, grad, make(align_corners), scales)


for _rank in (1, 2, 3):
    _register_nearest(f"upsample_nearest{_rank}d", exact=False)
    _register_nearest(f"_upsample_nearest_exact{_rank}d", exact=True)
for _name in ("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d"):
    _register_interpolation(_name, lambda corners: _interpolating(_linear_taps, corners))
_register_interpolation("upsample_bicubic2d", lambda corners: _interpolating(_cubic_taps, corners))
_register_interpolation("_upsample_bilinear2d_aa", lambda corners: _antialiasing(_triangle, 1.0, corners))
_register_interpolation(
    "_upsample_bicubic2d_aa", lambda corners: _antialiasing(lambda x: _cubic(x, -0.5), 2.0, corners)
)
