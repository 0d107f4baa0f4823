# SPDX-License-Identifier: Apache-2.0
"""Softmax, its logarithm and their gradients, computed in float32 for half types.

Host kernel `neuron.log_softmax` (see `Builder.composite`): of float32, along the last dimension.
"""

from __future__ import annotations

import math

import torch

from ...stablehlo import Builder, Value
from ..indexing import at_least_1d, wrap_dim
from ..promotion import opmath
from ..registry import lowers
from .reductions import shaped

aten = torch.ops.aten


def _prepare(b: Builder, x: Value, dim: int) -> tuple[Value, list[int]]:
    dtype = b.out[0].dtype
    x = at_least_1d(b, b.convert(b.convert(x, dtype), opmath(dtype)))
    return x, [wrap_dim(dim, x.ndim)]


def softmax(b: Builder, x: Value, dims: list[int]) -> Value:
    # A NaN comes through the exponential; a row of -inf becomes NaN as in PyTorch.
    weights = b.exponential(b.subtract(x, b.reduce(x, dims, "maximum_number", keepdim=True)))
    return b.divide(weights, b.reduce(weights, dims, "add", keepdim=True))


# Numbers from which on the host kernel is faster: a vocabulary's scores, which XLA passes over three times.
LARGE = 2**20


def log_softmax(b: Builder, x: Value, dims: list[int]) -> Value:
    def decomposition(x: Value) -> Value:
        shifted = b.subtract(x, b.reduce(x, dims, "maximum_number", keepdim=True))
        return b.subtract(shifted, b.log(b.reduce(b.exponential(shifted), dims, "add", keepdim=True)))

    # XLA reads half-type numbers where they are; for the kernel they would be widened in memory first.
    serves = x.dtype == torch.float32 and dims == [x.ndim - 1] and not b.is_converted(x)
    if not serves or x.numel < LARGE:
        return decomposition(x)
    return b.composite("neuron.log_softmax", [x], [(x.shape, x.dtype)], decomposition)[0]


@lowers(aten._softmax.default)
def softmax_kernel(b: Builder, x: Value, dim: int, half_to_float: bool) -> Value:
    return shaped(b, softmax(b, *_prepare(b, x, dim)))


@lowers(aten._log_softmax.default)
def log_softmax_kernel(b: Builder, x: Value, dim: int, half_to_float: bool) -> Value:
    return shaped(b, log_softmax(b, *_prepare(b, x, dim)))


@lowers(aten.softmax.int, whole=True)
def softmax_int(b: Builder, x: Value, dim: int, dtype: torch.dtype | None) -> Value:
    return shaped(b, softmax(b, *_prepare(b, x, dim)))


@lowers(aten.log_softmax.int, whole=True)
def log_softmax_int(b: Builder, x: Value, dim: int, dtype: torch.dtype | None) -> Value:
    return shaped(b, log_softmax(b, *_prepare(b, x, dim)))


@lowers(aten._safe_softmax.default)
def safe_softmax(b: Builder, x: Value, dim: int, dtype: torch.dtype | None) -> Value:
    """Rows of -inf give zeros."""
    x, dims = _prepare(b, x, dim)
    largest = b.reduce(x, dims, "maximum", keepdim=True)
    masked = b.compare(largest, -math.inf, "EQ")
    weights = b.exponential(b.subtract(x, b.select(masked, 0.0, largest)))
    total = b.select(masked, 1.0, b.reduce(weights, dims, "add", keepdim=True))
    return shaped(b, b.divide(weights, total))


@lowers(aten._softmax_backward_data.default)
def softmax_backward(b: Builder, grad: Value, output: Value, dim: int, input_dtype: torch.dtype) -> Value:
    grad, output = (at_least_1d(b, b.convert(v, opmath(v.dtype))) for v in (grad, output))
    product = b.multiply(grad, output)
    total = b.reduce(product, [wrap_dim(dim, output.ndim)], "add", keepdim=True)
    return shaped(b, b.subtract(product, b.multiply(output, total)))


@lowers(aten._log_softmax_backward_data.default)
def log_softmax_backward(b: Builder, grad: Value, output: Value, dim: int, input_dtype: torch.dtype) -> Value:
    grad, output = (at_least_1d(b, b.convert(v, opmath(v.dtype))) for v in (grad, output))
    total = b.reduce(grad, [wrap_dim(dim, output.ndim)], "add", keepdim=True)
    return shaped(b, b.subtract(grad, b.multiply(b.exponential(output), total)))
