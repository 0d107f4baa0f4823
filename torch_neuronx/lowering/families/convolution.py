# SPDX-License-Identifier: Apache-2.0
"""Convolutions of one to three spatial dimensions, their transposes and gradients.

Half types are convolved in float32 and rounded once. Kernels are reversed by an operation of their
own, not by `window_reversal`: XLA's fast CPU convolution takes no reversed windows.

Host kernel: neuron.convolution, operands input, weight [, bias].
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from ...stablehlo import Builder, Value
from ..promotion import opmath
from ..registry import lowers
from .normalization import finish

aten = torch.ops.aten


def _expand(sizes: Sequence[int], rank: int) -> list[int]:
    """One size stands for all spatial dimensions."""
    return list(sizes) * rank if len(sizes) == 1 else list(sizes)


def _direct(b: Builder, x: Value, weight: Value, stride, padding, dilation, groups) -> Value:
    """(N, C, ...) with (O, C / groups, ...)."""
    spatial = [
        (n + 2 * p - d * (k - 1) - 1) // s + 1
        for n, k, s, p, d in zip(x.shape[2:], weight.shape[2:], stride, padding, dilation, strict=True)
    ]
    shape = (x.shape[0], weight.shape[0], *spatial)
    pairs = [(p, p) for p in padding]
    return b.convolution(x, weight, shape, stride, pairs, [1] * len(stride), dilation, groups)


def _transposed(
    b: Builder, x: Value, weight: Value, spatial: Sequence[int], stride, padding, dilation, groups
) -> Value:
    """(N, C, ...) with (C, O / groups, ...) to (N, O, *spatial): the adjoint of `_direct` with that weight.

    A convolution of the input spread by `stride` with the reversed kernel.
    """
    rank = len(stride)
    channels, per_group, *kernel = weight.shape
    if groups > 1:
        split = b.reshape(weight, (groups, channels // groups, per_group, *kernel))
        split = b.transpose(split, [1, 0, 2, *range(3, 3 + rank)])
        weight = b.reshape(split, (channels // groups, groups * per_group, *kernel))
    weight = b.reverse(weight, list(range(2, 2 + rank)))
    pairs = []
    for n, k, s, p, d, size in zip(x.shape[2:], kernel, stride, padding, dilation, spatial, strict=True):
        low = d * (k - 1) - p
        pairs.append((low, size - 1 + d * (k - 1) - (n - 1) * s - low))
    shape = (x.shape[0], groups * per_group, *spatial)
    return b.convolution(x, weight, shape, [1] * rank, pairs, stride, dilation, groups, kernel_layout="io")


def _weight_gradient(
    b: Builder, x: Value, grad: Value, kernel: Sequence[int], stride, padding, dilation, groups
) -> Value:
    """(O, C / groups, *kernel) of `_direct` from its input (N, C, ...) and its result's gradient (N, O, ...).

    A convolution over the batch: channels of the input are its batch, the gradient is its kernel,
    stride and dilation change places.
    """
    pairs = []
    for n, m, k, s, p, d in zip(x.shape[2:], grad.shape[2:], kernel, stride, padding, dilation, strict=True):
        pairs.append((p, (m - 1) * s + 1 + (k - 1) * d - n - p))
    shape = (grad.shape[1], x.shape[1] // groups, *kernel)
    ones = [1] * len(stride)
    layouts = {"input_layout": "fb", "kernel_layout": "io", "output_layout": "fb"}
    return b.convolution(x, grad, shape, dilation, pairs, ones, stride, batch_groups=groups, **layouts)


def _wide(b: Builder, *values: Value) -> list[Value]:
    return [b.convert(v, opmath(v.dtype)) for v in values]


def _config(**lists: Sequence[int]) -> str:
    return ";".join(f"{name}={','.join(map(str, values))}" for name, values in lists.items())


@lowers(aten.convolution.default, aten.convolution_overrideable.default)
def convolution(b, x, weight, bias, stride, padding, dilation, transposed, output_padding, groups):
    (result,) = b.out
    if result.numel() == 0:
        return b.constant(0, result.dtype, tuple(result.shape))
    rank = x.ndim - 2
    stride, padding, dilation, output_padding = (_expand(v, rank) for v in (stride, padding, dilation, output_padding))

    def decomposition(x, weight, bias=None):
        x, weight = _wide(b, x, weight)
        if transposed:
            y = _transposed(b, x, weight, result.shape[2:], stride, padding, dilation, groups)
        else:
            y = _direct(b, x, weight, stride, padding, dilation, groups)
        if bias is not None:
            y = b.add(y, b.reshape(b.convert(bias, y.dtype), (bias.numel, *[1] * rank)))
        return b.convert(y, result.dtype)

    operands = [x, weight] if bias is None else [x, weight, bias]
    config = _config(
        stride=stride,
        padding=padding,
        dilation=dilation,
        transposed=[int(transposed)],
        output_padding=output_padding,
        groups=[groups],
    )
    types = [(tuple(result.shape), result.dtype)]
    return b.composite("neuron.convolution", operands, types, decomposition, config)


@lowers(aten.convolution_backward.default)
def convolution_backward(
    b, grad, x, weight, bias_sizes, stride, padding, dilation, transposed, output_padding, groups, output_mask
):
    rank = x.ndim - 2
    stride, padding, dilation = (_expand(v, rank) for v in (stride, padding, dilation))
    empty = [
        b.constant(0, v.dtype, v.shape) if wanted else None for v, wanted in zip((x, weight), output_mask, strict=False)
    ]
    grad, x, weight = _wide(b, grad, x, weight)
    results: list[Value | None] = [*empty, None]
    if output_mask[2]:
        results[2] = b.reduce(grad, [0, *range(2, grad.ndim)], "add")
    if math.prod((grad.numel, x.numel, weight.numel)):
        if output_mask[0] and transposed:
            results[0] = _direct(b, grad, weight, stride, padding, dilation, groups)
        elif output_mask[0]:
            results[0] = _transposed(b, grad, weight, x.shape[2:], stride, padding, dilation, groups)
        if output_mask[1]:
            image, values = (grad, x) if transposed else (x, grad)
            results[1] = _weight_gradient(b, image, values, weight.shape[2:], stride, padding, dilation, groups)
    return finish(b, results)
