# SPDX-License-Identifier: Apache-2.0
"""Tensors made of nothing: constants, ranges, identity and triangular indices."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ...stablehlo import Builder, Value
from ..pointwise import Operand, finish
from ..promotion import opmath
from ..registry import lowers

aten = torch.ops.aten


# -- one value everywhere -------------------------------------------------------------------------


def _filled(b: Builder, x: Operand) -> Value:
    return finish(b, b.value(x, b.out[0].dtype))


@lowers(aten.full.default)
def _full(b: Builder, size: Sequence[int], value: Operand) -> Value:
    return _filled(b, value)


@lowers(aten.full_like.default, aten.fill.Scalar, aten.fill.Tensor)
def _full_like(b: Builder, x: Value, value: Operand) -> Value:
    return _filled(b, value)


@lowers(aten.new_full.default)
def _new_full(b: Builder, x: Value, size: Sequence[int], value: Operand) -> Value:
    return _filled(b, value)


@lowers(aten.scalar_tensor.default)
def _scalar_tensor(b: Builder, value: Operand) -> Value:
    return _filled(b, value)


@lowers(aten.ones.default, aten.ones_like.default)
def _ones(b: Builder, like: object) -> Value:
    return _filled(b, 1)


@lowers(aten.new_ones.default)
def _new_ones(b: Builder, x: Value, size: Sequence[int]) -> Value:
    return _filled(b, 1)


@lowers(aten.zeros.default, aten.zeros_like.default, aten.zero.default)
def _zeros(b: Builder, like: object) -> Value:
    return _filled(b, 0)


@lowers(aten.new_zeros.default)
def _new_zeros(b: Builder, x: Value, size: Sequence[int]) -> Value:
    return _filled(b, 0)


# In a graph the contents of `empty` are as good as any. Its relatives (empty_like, new_empty …) have no rules:
# in a graph they decompose, and in eager code they must remain allocations.
@lowers(aten.empty.memory_format)
def _empty(b: Builder, size: Sequence[int]) -> Value:
    return _filled(b, 0)


@lowers(aten.empty_permuted.default)
def _empty_permuted(b: Builder, size: Sequence[int], order: Sequence[int]) -> Value:
    return _filled(b, 0)


@lowers(aten.empty_strided.default)
def _empty_strided(b: Builder, size: Sequence[int], stride: Sequence[int]) -> Value:
    return _filled(b, 0)


# -- ranges -----------------------------------------------------------------------------------------


def _counted(b: Builder, start: Operand, step: Operand) -> Value:
    """start + i * step, in the compute dtype of the result."""
    out = b.out[0]
    dtype = opmath(out.dtype)
    index = b.iota(out.shape, 0, dtype)
    if step != 1:
        index = b.multiply(index, b.value(step, dtype))
    if start != 0:
        index = b.add(index, b.value(start, dtype))
    return finish(b, index)


@lowers(aten.arange.default, static=("end",))
def _arange(b: Builder, end: float) -> Value:
    return _counted(b, 0, 1)


@lowers(aten.arange.start, static=("start", "end"))
def _arange_start(b: Builder, start: float, end: float) -> Value:
    return _counted(b, start, 1)


@lowers(aten.arange.start_step, static=("start", "end", "step"))
def _arange_start_step(b: Builder, start: float, end: float, step: float) -> Value:
    return _counted(b, start, step)


def _spaced(b: Builder, start: Operand, end: Operand, steps: int, dtype: torch.dtype) -> Value:
    """From either end to the middle, so that both ends are exact."""
    # For an integer result PyTorch makes the ends whole before it divides.
    start, end = (b.value(b.value(x, b.out[0].dtype), dtype) for x in (start, end))
    if steps == 1:
        return start
    step = b.divide(b.subtract(end, start), float(steps - 1))
    index = b.iota((steps,), 0, dtype)
    first = b.add(b.multiply(index, step), start)
    last = b.subtract(end, b.multiply(b.subtract(float(steps - 1), index), step))
    return b.select(b.compare(index, float(steps // 2), "LT"), first, last)


def _spacing_dtype(dtype: torch.dtype) -> torch.dtype:
    wide = opmath(dtype)
    return wide if wide.is_floating_point or wide.is_complex else torch.float64


@lowers(aten.linspace.default, aten.linspace.Tensor_Tensor, aten.linspace.Tensor_Scalar, aten.linspace.Scalar_Tensor)
def _linspace(b: Builder, start: Operand, end: Operand, steps: int) -> Value:
    return finish(b, _spaced(b, start, end, steps, _spacing_dtype(b.out[0].dtype)))


@lowers(aten.logspace.default, aten.logspace.Tensor_Tensor, aten.logspace.Tensor_Scalar, aten.logspace.Scalar_Tensor)
def _logspace(b: Builder, start: Operand, end: Operand, steps: int, base: Operand) -> Value:
    dtype = _spacing_dtype(b.out[0].dtype)
    return finish(b, b.power(b.value(base, dtype), _spaced(b, start, end, steps, dtype)))


# -- matrices -----------------------------------------------------------------------------------------


@lowers(aten.eye.default)
def _eye(b: Builder, n: int) -> Value:
    return _identity(b)


@lowers(aten.eye.m)
def _eye_m(b: Builder, n: int, m: int) -> Value:
    return _identity(b)


def _identity(b: Builder) -> Value:
    shape = b.out[0].shape
    return finish(b, b.compare(b.iota(shape, 0, torch.int32), b.iota(shape, 1, torch.int32), "EQ"))


@lowers(aten.tril_indices.default)
def _tril_indices(b: Builder, row: int, col: int, offset: int) -> Value:
    return _constant_indices(b, torch.tril_indices(row, col, offset))


@lowers(aten.triu_indices.default)
def _triu_indices(b: Builder, row: int, col: int, offset: int) -> Value:
    return _constant_indices(b, torch.triu_indices(row, col, offset))


def _constant_indices(b: Builder, indices: torch.Tensor) -> Value:
    return b.constant_array(indices.flatten().tolist(), b.out[0].dtype, indices.shape)
