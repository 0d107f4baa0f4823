# SPDX-License-Identifier: Apache-2.0
"""Pixel and channel shuffles, im2col and col2im, grid sampling."""

from __future__ import annotations

import pytest
import torch
from case import FLOATS, Case, check, parametrize, sample

aten = torch.ops.aten

FULL = FLOATS[:2]


def on(op, make, *args, dtypes=FULL, id="", **options) -> Case:
    return Case(op, lambda dtype: ((make(dtype), *args), {}), dtypes, id, **{"strides": False, **options})


def channels(dtype):
    return sample(2, 8, 4, 6, dtype=dtype)


def image(dtype):
    return sample(2, 3, 6, 8, dtype=dtype)


# kernel, dilation, padding, stride
WINDOWS = {
    "tiles": ([2, 2], [1, 1], [0, 0], [2, 2]),
    "dilated": ([3, 2], [1, 2], [1, 0], [2, 1]),
    "overlapping": ([3, 3], [1, 1], [1, 1], [1, 1]),
}


def columns(windows):
    return lambda dtype: aten.im2col(image(dtype), *windows)


CASES = [
    on(aten.pixel_shuffle.default, channels, 2, dtypes=(torch.float32, torch.int64)),
    on(aten.pixel_unshuffle.default, channels, 2, dtypes=(torch.float32, torch.int64)),
    on(aten.pixel_shuffle.default, lambda d: channels(d)[0], 2, id="no-batch", layouts=()),
    on(aten.channel_shuffle.default, channels, 4),
    *(on(aten.im2col.default, image, *w, id=n) for n, w in WINDOWS.items()),
    *(on(aten.col2im.default, columns(w), [6, 8], *w, id=n) for n, w in WINDOWS.items()),
    on(aten.im2col.default, lambda d: image(d)[0], *WINDOWS["dilated"], id="no-batch", layouts=()),
]


@parametrize(CASES)
def test_patches(case, dtype, variant):
    check(case, dtype, variant)


@pytest.mark.parametrize("windows", WINDOWS.values(), ids=WINDOWS)
def test_fold_undoes_unfold(windows):
    kernel, dilation, padding, stride = windows
    options = {"dilation": dilation, "padding": padding, "stride": stride}
    x = image(torch.float32)
    leaf, device_leaf = x.clone().requires_grad_(), x.to("neuron", copy=True).requires_grad_()
    for source in (leaf, device_leaf):
        patches = torch.nn.functional.unfold(source, kernel, **options)
        (torch.nn.functional.fold(patches, (6, 8), kernel, **options) * 2).square().sum().backward()
    torch.testing.assert_close(device_leaf.grad.cpu(), leaf.grad, rtol=1e-4, atol=1e-4)


def positions(*shape: int) -> torch.Tensor:
    """In and around the image, corners included; away from ties of rounding."""
    grid = sample(*shape, seed=1, low=-1.5, high=1.5) + 0.0013
    grid.view(-1, shape[-1])[0] = 1.0
    grid.view(-1, shape[-1])[1] = -1.0
    return grid


@pytest.mark.parametrize("align_corners", (False, True), ids=("edges", "corners"))
@pytest.mark.parametrize("padding", ("zeros", "border", "reflection"))
@pytest.mark.parametrize("mode", ("bilinear", "nearest", "bicubic"))
def test_grid_sample(mode, padding, align_corners):
    options = {"mode": mode, "padding_mode": padding, "align_corners": align_corners}
    operands = [(sample(2, 3, 5, 7), positions(2, 4, 6, 2))]
    if mode != "bicubic":
        operands.append((sample(2, 3, 4, 5, 6), positions(2, 2, 3, 4, 3)))
    for x, grid in operands:
        expected = torch.nn.functional.grid_sample(x, grid, **options)
        actual = torch.nn.functional.grid_sample(x.to("neuron"), grid.to("neuron"), **options)
        torch.testing.assert_close(actual.cpu(), expected, rtol=1e-4, atol=1e-4)


def test_affine_grid():
    theta = sample(2, 2, 3)
    actual = torch.nn.functional.affine_grid(theta.to("neuron"), (2, 3, 4, 5), align_corners=False)
    expected = torch.nn.functional.affine_grid(theta, (2, 3, 4, 5), align_corners=False)
    torch.testing.assert_close(actual.cpu(), expected)
