# SPDX-License-Identifier: Apache-2.0
"""Convolutions of one to three spatial dimensions, their transposes and gradients.

Half types are convolved in float32 and rounded once. Kernels are reversed by an operation of their
own, not by `window_reversal`: XLA's fast CPU convolution takes no reversed windows.

Host kernels: neuron.convolution (input, weight [, bias]) and neuron.convolution_backward (gradient,
input, weight; of the gradients of input and weight, those that `mask` asks for), both also with the
suffix _bf16: not every processor that has the one is better off with the other. The first one's
`channels_last` says whether input and result, and whether the weight, have their channels last.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

import torch

from ...stablehlo import Builder, Value
from .. import channels_last
from ..promotion import opmath
from ..registry import lowers
from .normalization import finish

aten = torch.ops.aten


class Geometry(NamedTuple):
    """What the arguments of a convolution say; one entry a spatial dimension in every list."""

    stride: list[int]
    padding: list[int]
    dilation: list[int]
    transposed: bool
    output_padding: list[int]
    groups: int

    def config(self) -> str:
        """As the host kernels read it."""
        lists = (*self[:3], [int(self.transposed)], self.output_padding, [self.groups])
        return ";".join(f"{name}={','.join(map(str, v))}" for name, v in zip(self._fields, lists, strict=True))


def _geometry(rank: int, stride, padding, dilation, transposed, output_padding, groups) -> Geometry:
    # A list of one stands for all spatial dimensions.
    lists = [list(v) * rank if len(v) == 1 else list(v) for v in (stride, padding, dilation, output_padding)]
    return Geometry(*lists[:3], transposed, lists[3], groups)


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


def _convolve(b: Builder, x: Value, weight: Value, spatial: Sequence[int], g: Geometry) -> Value:
    lists = (g.stride, g.padding, g.dilation, g.groups)
    return _transposed(b, x, weight, spatial, *lists) if g.transposed else _direct(b, x, weight, *lists)


def _kernel(name: str, operands: Sequence[Value | torch.Tensor], pixels: int, groups: int) -> str | None:
    """The host kernel for these operands (the second or third is the weight), if a call of it pays: it costs 40 us
    more than one of XLA's convolution, and takes 0.4 to 0.9 of its time; with groups, a thirtieth.

    pixels: of the convolution's smaller side, all images and channels counted.
    """
    dtype, weight = operands[0].dtype, operands[1].shape if name == _FORWARD else operands[2].shape
    suffix = {torch.float32: "", torch.bfloat16: "_bf16"}.get(dtype)
    products = pixels * math.prod(weight[1:])
    if suffix is None or products < (2**23 if groups == 1 else 2**18) or any(v.dtype != dtype for v in operands):
        return None
    return name + suffix


_FORWARD, _BACKWARD = "neuron.convolution", "neuron.convolution_backward"


def gains_from_channels_last(graph: torch.fx.Graph, kernels: Collection[str]) -> bool:
    """Whether the host kernels among `kernels` convolve enough in this graph to reorder its images."""

    def serves(node: torch.fx.Node) -> bool:
        arguments: Any = node.args
        operands = [n.meta["val"] for n in arguments[:3] if n is not None]
        pixels = (operands[0] if arguments[6] else node.meta["val"]).numel()
        return operands[0].dim() > 3 and _kernel(_FORWARD, operands, pixels, arguments[8]) in kernels

    return channels_last.pays(graph, serves)


@lowers(aten.convolution.default, aten.convolution_overrideable.default)
def convolution(b, x, weight, bias, stride, padding, dilation, transposed, output_padding, groups):
    (out,) = b.out
    if out.numel() == 0:
        return b.constant(0, out.dtype, tuple(out.shape))
    geometry = _geometry(x.ndim - 2, stride, padding, dilation, transposed, output_padding, groups)

    def decomposition(x: Value, weight: Value, bias: Value | None = None) -> Value:
        y = _convolve(b, *_wide(b, x, weight), out.shape[2:], geometry)
        if bias is not None:
            y = b.add(y, b.reshape(b.convert(bias, y.dtype), (bias.numel, *[1] * (x.ndim - 2))))
        return b.convert(y, out.dtype)

    operands = [x, weight] if bias is None else [x, weight, bias]
    kernel = _kernel(_FORWARD, operands, x.numel if transposed else out.numel(), groups)
    if kernel is None:
        return decomposition(*operands)
    if x.ndim > 3 and b.channels_last:
        return _channels_last(b, kernel, operands, decomposition, geometry)
    config = geometry.config() + ";channels_last=0,0"
    return b.composite(kernel, operands, [(tuple(out.shape), out.dtype)], decomposition, config)


def _channels_last(
    b: Builder, kernel: str, operands: list[Value], decomposition: Callable[..., Value], geometry: Geometry
) -> Value:
    """The composite on an image with its channels last, and with the weight's last if that is how it lies."""
    (out,) = b.out
    weight = channels_last.source(b, operands[1])

    def reordered(x: Value, weight_as_it_lies: Value, *bias: Value) -> Value:
        y = decomposition(
            channels_last.to_first(b, x),
            weight_as_it_lies if weight is None else channels_last.to_first(b, weight_as_it_lies),
            *bias,
        )
        return channels_last.to_last(b, y)

    x = channels_last.to_last(b, operands[0])
    shape = [out.shape[d] for d in channels_last.last(out.dim())]
    config = geometry.config() + f";channels_last=1,{int(weight is not None)}"
    operands = [x, operands[1] if weight is None else weight, *operands[2:]]
    (y,) = b.composite(kernel, operands, [(shape, out.dtype)], reordered, config)
    return channels_last.to_first(b, y)


@lowers(aten.convolution_backward.default)
def convolution_backward(
    b, grad, x, weight, bias_sizes, stride, padding, dilation, transposed, output_padding, groups, output_mask
):
    geometry = _geometry(x.ndim - 2, stride, padding, dilation, transposed, output_padding, groups)
    results: list[Value | None] = [None, None, None]
    if output_mask[2]:
        (wide_grad,) = _wide(b, grad)
        results[2] = b.reduce(wide_grad, [0, *range(2, grad.ndim)], "add")
    wanted = [index for index in range(2) if output_mask[index]]
    if not grad.numel * x.numel * weight.numel:
        for index in wanted:
            results[index] = b.constant(0, b.out[index].dtype, tuple(b.out[index].shape))
        return finish(b, results)

    def decomposition(grad: Value, x: Value, weight: Value) -> list[Value]:
        dtypes = (x.dtype, weight.dtype)
        grad, x, weight = _wide(b, grad, x, weight)
        gradients = []
        if output_mask[0]:
            adjoint = geometry._replace(transposed=not transposed)
            gradients.append(_convolve(b, grad, weight, x.shape[2:], adjoint))
        if output_mask[1]:
            image, values = (grad, x) if transposed else (x, grad)
            lists = (geometry.stride, geometry.padding, geometry.dilation, groups)
            gradients.append(_weight_gradient(b, image, values, weight.shape[2:], *lists))
        return [b.convert(v, dtypes[index]) for v, index in zip(gradients, wanted, strict=True)]

    operands = [grad, x, weight]
    kernel = _kernel(_BACKWARD, operands, x.numel if transposed else grad.numel, groups)
    if wanted and kernel is not None:
        config = geometry.config() + f";mask={int(output_mask[0])},{int(output_mask[1])}"
        types = [(operands[1 + index].shape, x.dtype) for index in wanted]
        gradients = b.composite(kernel, operands, types, decomposition, config)
    else:
        gradients = decomposition(*operands)
    for index, gradient in zip(wanted, gradients, strict=True):
        results[index] = gradient
    return finish(b, results)
