# SPDX-License-Identifier: Apache-2.0
"""Layer, group and root-mean-square normalization.

Mean and variance take two passes (mean first, then the mean of squared distances): the one-pass
form E[x^2] - E[x]^2 cancels badly in float32. Half types are computed in float32 throughout and
rounded once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from ...stablehlo import Builder, Value
from .. import channels_last
from ..promotion import opmath
from ..registry import lowers

aten = torch.ops.aten


def mean_over(b: Builder, x: Value, dims: Sequence[int]) -> Value:
    """Mean with the reduced dimensions kept as size 1; NaN over an empty dimension."""
    return b.divide(b.reduce(x, dims, "add", keepdim=True), math.prod(x.shape[d] for d in dims))


def moments(b: Builder, x: Value, dims: Sequence[int]) -> tuple[Value, Value, Value]:
    """Mean, biased variance (both with kept dimensions) and the centred `x`."""
    mean = mean_over(b, x, dims)
    centred = b.subtract(x, mean)
    return mean, mean_over(b, b.multiply(centred, centred), dims), centred


def affine(b: Builder, x: Value, weight: Value | None, bias: Value | None, shape: Sequence[int] | None = None) -> Value:
    """x * weight + bias in the dtype of `x`; `shape` is what weight and bias are viewed as."""
    for parameter, apply in ((weight, b.multiply), (bias, b.add)):
        if parameter is not None:
            parameter = parameter if shape is None else b.reshape(parameter, shape)
            x = apply(x, b.convert(parameter, x.dtype))
    return x


def finish(b: Builder, values: Sequence[Value | None]) -> tuple[Value | None, ...]:
    """The values in the shapes and dtypes of the operator's results."""
    return tuple(
        None if value is None else b.reshape(b.convert(value, meta.dtype), meta.shape)
        for value, meta in zip(values, b.out, strict=True)
    )


# -- layer norm ---------------------------------------------------------------------------------


def _layer_norm(b: Builder, x: Value, normalized_shape, weight, bias, eps) -> tuple[Value, Value, Value]:
    axis = x.ndim - len(normalized_shape)
    per_row = (*x.shape[:axis], *[1] * len(normalized_shape))
    rows = b.reshape(x, (math.prod(x.shape[:axis]), 1, 1, math.prod(normalized_shape)))
    mean, variance = (b.reshape(v, per_row) for v in _group_moments(b, rows))
    x = b.convert(x, mean.dtype)
    rstd = b.rsqrt(b.add(variance, b.value(eps, x.dtype)))
    return affine(b, b.multiply(b.subtract(x, mean), rstd), weight, bias), mean, rstd


@lowers(aten.native_layer_norm.default)
def native_layer_norm(b, x, normalized_shape, weight, bias, eps):
    return finish(b, _layer_norm(b, x, normalized_shape, weight, bias, eps))


@lowers(aten.layer_norm.default, whole=True)
def layer_norm(b, x, normalized_shape, weight, bias, eps, cudnn_enable):
    return finish(b, _layer_norm(b, x, normalized_shape, weight, bias, eps)[:1])


def _input_gradient(b: Builder, grad: Value, normalized: Value, rstd: Value, dims: Sequence[int]) -> Value:
    """Gradient of x in normalized = (x - mean) * rstd, with mean and rstd functions of x over `dims`."""
    projected = b.multiply(normalized, mean_over(b, b.multiply(grad, normalized), dims))
    return b.multiply(b.subtract(b.subtract(grad, mean_over(b, grad, dims)), projected), rstd)


@lowers(aten.native_layer_norm_backward.default)
def native_layer_norm_backward(b, grad, x, normalized_shape, mean, rstd, weight, bias, output_mask):
    axis = x.ndim - len(normalized_shape)
    dims, outer = range(axis, x.ndim), range(axis)
    dtype = opmath(x.dtype)
    grad, x, mean, rstd = (b.convert(v, dtype) for v in (grad, x, mean, rstd))
    normalized = b.multiply(b.subtract(x, mean), rstd)
    results: list[Value | None] = [None, None, None]
    if output_mask[0]:
        results[0] = _input_gradient(b, affine(b, grad, weight, None), normalized, rstd, dims)
    if output_mask[1] and weight is not None:
        results[1] = b.reduce(b.multiply(grad, normalized), outer, "add")
    if output_mask[2] and bias is not None:
        results[2] = b.reduce(grad, outer, "add")
    return finish(b, results)


# -- group norm ---------------------------------------------------------------------------------


def _grouped(b: Builder, x: Value, N: int, C: int, HxW: int, group: int) -> Value:
    return b.reshape(b.convert(x, opmath(x.dtype)), (N, group, C // group, HxW))


# Elements from on which a call of the host kernel is faster than XLA's two passes.
_KERNEL_PAYS = 2**16


def _group_moments(b: Builder, x: Value) -> tuple[Value, Value]:
    """Mean and biased variance (N, 1, group, 1), in the compute dtype, of (N, outer, group, inner)."""

    def decomposition(x: Value) -> list[Value]:
        mean, variance, _ = moments(b, b.convert(x, opmath(x.dtype)), (1, 3))
        return [b.reshape(mean, shape), b.reshape(variance, shape)]

    shape = (x.shape[0], x.shape[2])
    if x.dtype in (torch.float32, torch.bfloat16) and x.numel >= _KERNEL_PAYS:
        results = b.composite("neuron.group_moments", [x], [(shape, torch.float32)] * 2, decomposition)
    else:
        results = decomposition(x)
    mean, variance = (b.reshape(v, (shape[0], 1, shape[1], 1)) for v in results)
    return mean, variance


def _group_norm(
    b: Builder, x: Value, weight, bias, N, C, HxW, group, eps, silu: bool = False
) -> tuple[Value, Value, Value]:
    """The result in the dtype of x, mean and rstd. silu: of the result, if `_kernel_normalizes`."""
    last = channels_last.source(b, x)
    if last is None:
        image, grouped, per_channel = x, (N, 1, group, C // group * HxW), (N, C, *[1] * (x.ndim - 2))
    else:
        image, grouped, per_channel = last, (N, HxW, group, C // group), (N, *[1] * (x.ndim - 2), C)
    mean, variance = _group_moments(b, b.reshape(image, grouped))
    rstd = b.rsqrt(b.add(variance, b.value(eps, variance.dtype)))
    # Small: one value a channel, so that the image itself takes one subtraction, one product and one sum.
    spread = [b.broadcast_to(b.reshape(v, (N, group, 1)), (N, group, C // group)) for v in (mean, rstd)]
    shift, scale = (b.reshape(v, (N, C)) for v in spread)
    scale = affine(b, scale, weight, None)
    bias = b.constant(0, scale.dtype, (C,)) if bias is None else b.convert(bias, scale.dtype)
    if _kernel_normalizes(b, x):
        operands = [b.reshape(image, (N, HxW, C)), shift, scale, bias]
        (result,) = b.custom_call(_KERNEL, operands, [((N, HxW, C), x.dtype)], f"silu={int(silu)}")
        result = b.reshape(result, image.shape)
    else:
        result = b.subtract(b.convert(image, scale.dtype), b.reshape(shift, per_channel))
        result = b.multiply(result, b.reshape(scale, per_channel))
        result = b.add(result, b.reshape(bias, [1 if d == 0 else n for d, n in enumerate(per_channel)]))
        result = b.convert(result, x.dtype)
    return result if last is None else channels_last.to_first(b, result), mean, rstd


# Operands: x (N, positions, C), and in float32 shift and scale (N, C) and bias (C). Result: (x - shift) * scale + bias,
# or with the config `silu=1` silu of that, rounded once to the dtype of x.
_KERNEL = "neuron.normalize_channels"


def _kernel_normalizes(b: Builder, x: Value) -> bool:
    """Whether `x` is an image with its channels last that the host kernel takes."""
    takes = x.dtype in (torch.float32, torch.bfloat16) and x.numel >= _KERNEL_PAYS
    return takes and _KERNEL in b.kernels and channels_last.source(b, x) is not None


@lowers(aten.native_group_norm.default)
def native_group_norm(b, x, weight, bias, N, C, HxW, group, eps):
    return finish(b, _group_norm(b, x, weight, bias, N, C, HxW, group, eps))


@lowers(aten.group_norm.default, whole=True)
def group_norm(b, x, num_groups, weight, bias, eps, cudnn_enabled):
    N, C = x.shape[:2]
    return finish(b, _group_norm(b, x, weight, bias, N, C, math.prod(x.shape[2:]), num_groups, eps)[:1])


def group_norm_with_silu(b: Builder, x: Value, weight, bias, N, C, HxW, group, eps) -> Value | None:
    """silu(group_norm(x)) where a host kernel computes both in one pass; else None."""
    if not _kernel_normalizes(b, x):
        return None
    return _group_norm(b, x, weight, bias, N, C, HxW, group, eps, silu=True)[0]


@lowers(aten.native_group_norm_backward.default)
def native_group_norm_backward(b, grad, x, mean, rstd, weight, N, C, HxW, group, output_mask):
    grad, x = (_grouped(b, v, N, C, HxW, group) for v in (grad, x))
    per_group = (N, group, 1, 1)
    # PyTorch saves the statistics in the dtype of x; a half-precision mean is too coarse to centre with.
    mean = b.reshape(mean, per_group) if mean.dtype == x.dtype else mean_over(b, x, (2, 3))
    rstd = b.reshape(b.convert(rstd, x.dtype), per_group)
    normalized = b.multiply(b.subtract(x, mean), rstd)
    results: list[Value | None] = [None, None, None]
    if output_mask[0]:
        scaled = affine(b, grad, weight, None, (1, group, C // group, 1))
        results[0] = _input_gradient(b, scaled, normalized, rstd, (2, 3))
    if output_mask[1]:
        results[1] = b.reduce(b.multiply(grad, normalized), (0, 3), "add")
    if output_mask[2]:
        results[2] = b.reduce(grad, (0, 3), "add")
    return finish(b, results)


# -- RMS norm -----------------------------------------------------------------------------------


def _rms_norm(b: Builder, x: Value, normalized_shape, weight, eps) -> tuple[Value, Value]:
    found = rms_norm_kernel(b, x, weight, eps, rounds_first=False) if len(normalized_shape) == 1 else None
    if found is not None:
        return found
    dims = range(x.ndim - len(normalized_shape), x.ndim)
    x = b.convert(x, opmath(x.dtype))
    eps = torch.finfo(x.dtype).eps if eps is None else eps
    rstd = b.rsqrt(b.add(mean_over(b, b.multiply(x, x), dims), b.value(eps, x.dtype)))
    return affine(b, b.multiply(x, rstd), weight, None), rstd


def rms_norm_kernel(
    b: Builder, x: Value, weight: Value | None, eps: float | None, rounds_first: bool
) -> tuple[Value, Value] | None:
    """x / sqrt(mean(x²) + eps) * weight over the last dimension, in the dtype of both, and the reciprocal of the root,
    by the host kernel `neuron.rms_norm`; None where that does not serve.

    rounds_first: to that dtype before the product with the weight.
    """
    if "neuron.rms_norm" not in b.kernels or weight is None or weight.dtype != x.dtype or x.numel < _RMS_KERNEL_PAYS:
        return None
    if x.dtype not in (torch.float32, torch.bfloat16) or weight.shape != x.shape[-1:]:
        return None
    eps = torch.finfo(torch.float32).eps if eps is None else eps
    config = f"eps={eps!r};rounds_first={int(rounds_first)}"
    types = [(x.shape, x.dtype), ((*x.shape[:-1], 1), torch.float32)]
    result, rstd = b.custom_call("neuron.rms_norm", [x, weight], types, config)
    return result, rstd


# Elements from which on the kernel is faster than XLA's code.
_RMS_KERNEL_PAYS = 2**15


@lowers(aten._fused_rms_norm.default)
def _fused_rms_norm(b, x, normalized_shape, weight, eps):
    return finish(b, _rms_norm(b, x, normalized_shape, weight, eps))


@lowers(aten.rms_norm.default, whole=True)
def _whole_rms_norm(b, x, normalized_shape, weight, eps):
    return finish(b, _rms_norm(b, x, normalized_shape, weight, eps)[:1])


@lowers(aten._fused_rms_norm_backward.default)
def _fused_rms_norm_backward(b, grad, x, normalized_shape, rstd, weight, output_mask):
    axis = x.ndim - len(normalized_shape)
    dtype = opmath(x.dtype)
    grad, x, rstd = (b.convert(v, dtype) for v in (grad, x, rstd))
    normalized = b.multiply(x, rstd)
    results: list[Value | None] = [None, None]
    if output_mask[0]:
        scaled = affine(b, grad, weight, None)
        along = mean_over(b, b.multiply(scaled, normalized), range(axis, x.ndim))
        results[0] = b.multiply(b.subtract(scaled, b.multiply(normalized, along)), rstd)
    if output_mask[1] and weight is not None:
        results[1] = b.reduce(b.multiply(grad, normalized), range(axis), "add")
    return finish(b, results)
