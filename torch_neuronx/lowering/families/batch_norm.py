# SPDX-License-Identifier: Apache-2.0
"""Batch normalization: statistics per channel (dimension 1), running averages kept by the module."""

from __future__ import annotations

import math

import torch

from ...stablehlo import Builder, Value
from ..promotion import opmath
from ..registry import LoweringError, lowers
from .normalization import finish, mean_over, moments

aten = torch.ops.aten


def _per_channel(b: Builder, x: Value, like: Value) -> Value:
    """(C,) or (1, C, 1, ...) as (1, C, 1, ...) in the dtype of `like`."""
    return b.reshape(b.convert(x, like.dtype), [n if d == 1 else 1 for d, n in enumerate(like.shape)])


def _dims(x: Value) -> list[int]:
    return [d for d in range(x.ndim) if d != 1]


def _batch_norm(b, x, weight, bias, running_mean, running_var, training, momentum, eps) -> list[Value | None]:
    """Result, saved mean, saved reciprocal deviation and the running averages after this batch."""
    x = b.convert(x, opmath(x.dtype))
    if training:
        mean, variance, centred = moments(b, x, _dims(x))
        updated = []
        count = x.numel // x.shape[1] if x.shape[1] else 0
        # The running variance is the unbiased one.
        for running, batch, factor in (
            (running_mean, mean, 1.0),
            (running_var, variance, count / (count - 1) if count > 1 else math.nan),
        ):
            if running is None:
                updated.append(None)
                continue
            dtype = opmath(running.dtype)
            rate = b.value(momentum, dtype)
            batch = b.reshape(b.convert(batch, dtype), running.shape)
            batch = b.multiply(batch, factor) if factor != 1.0 else batch
            old = b.convert(running, dtype)
            updated.append(b.add(b.multiply(batch, rate), b.multiply(old, b.subtract(1.0, rate))))
    else:
        mean, variance = (_per_channel(b, v, x) for v in (running_mean, running_var))
        centred = b.subtract(x, mean)
        updated = [running_mean, running_var]
    rstd = b.rsqrt(b.add(variance, b.value(eps, x.dtype)))
    scale = rstd if weight is None else b.multiply(rstd, _per_channel(b, weight, x))
    result = b.multiply(centred, scale)
    if bias is not None:
        result = b.add(result, _per_channel(b, bias, x))
    return [result, mean, rstd, *updated]


def _results(b: Builder, values: list[Value | None]) -> tuple[Value | None, ...]:
    """As many values as the operator has results.

    ATen's CPU kernel returns empty statistics in evaluation mode; its meta kernel does not.
    """
    fitted = []
    for value, meta in zip(values, b.out, strict=False):
        empty = meta.numel() == 0 and value is not None and value.numel
        fitted.append(b.constant(0, meta.dtype, tuple(meta.shape)) if empty else value)
    return finish(b, fitted)


@lowers(aten.native_batch_norm.default)
def native_batch_norm(b, x, weight, bias, running_mean, running_var, training, momentum, eps):
    """The schema hides that training updates the running averages: eager asks for them as two more results."""
    if training and running_mean is not None and len(b.out) == 3:
        raise LoweringError("native_batch_norm would not update its running averages here")
    return _results(b, _batch_norm(b, x, weight, bias, running_mean, running_var, training, momentum, eps))


@lowers(aten._native_batch_norm_legit_functional.default)
def _native_batch_norm_legit_functional(b, x, weight, bias, running_mean, running_var, training, momentum, eps):
    return _results(b, _batch_norm(b, x, weight, bias, running_mean, running_var, training, momentum, eps))


@lowers(aten._native_batch_norm_legit.no_stats)
def _native_batch_norm_legit_no_stats(b, x, weight, bias, training, momentum, eps):
    return _results(b, _batch_norm(b, x, weight, bias, None, None, True, momentum, eps))


@lowers(aten._native_batch_norm_legit_no_training.default)
def _native_batch_norm_legit_no_training(b, x, weight, bias, running_mean, running_var, momentum, eps):
    return _results(b, _batch_norm(b, x, weight, bias, running_mean, running_var, False, momentum, eps))


@lowers(aten.native_batch_norm_backward.default)
def native_batch_norm_backward(
    b, grad, x, weight, running_mean, running_var, save_mean, save_invstd, train, eps, output_mask
):
    dtype, dims = opmath(x.dtype), _dims(x)
    grad, x = b.convert(grad, dtype), b.convert(x, dtype)
    if train:
        mean, rstd = _per_channel(b, save_mean, x), _per_channel(b, save_invstd, x)
    else:
        mean = _per_channel(b, running_mean, x)
        rstd = b.rsqrt(b.add(_per_channel(b, running_var, x), b.value(eps, dtype)))
    normalized = b.multiply(b.subtract(x, mean), rstd)
    results: list[Value | None] = [None, None, None]
    if output_mask[0]:
        scale = rstd if weight is None else b.multiply(rstd, _per_channel(b, weight, x))
        inner = grad
        if train:
            along = b.multiply(normalized, mean_over(b, b.multiply(grad, normalized), dims))
            inner = b.subtract(b.subtract(grad, mean_over(b, grad, dims)), along)
        results[0] = b.multiply(inner, scale)
    if output_mask[1]:
        results[1] = b.reduce(b.multiply(grad, normalized), dims, "add")
    if output_mask[2]:
        results[2] = b.reduce(grad, dims, "add")
    return finish(b, results)
