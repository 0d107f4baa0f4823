# SPDX-License-Identifier: Apache-2.0
"""Cholesky factors and triangular systems."""

from __future__ import annotations

import torch

from ...stablehlo import Builder, Value
from ..registry import lowers
from .reductions import shaped

aten = torch.ops.aten


def _triangle(b: Builder, x: Value, upper: bool) -> Value:
    """The upper or lower triangle of matrices, zero elsewhere."""
    rows, columns = (b.iota(x.shape, x.ndim - d, torch.int32) for d in (2, 1))
    return b.select(b.compare(rows, columns, "LE" if upper else "GE"), x, 0)


def _diagonal(b: Builder, x: Value) -> Value:
    rows, columns = (b.iota(x.shape, x.ndim - d, torch.int32) for d in (2, 1))
    return b.reduce(b.select(b.compare(rows, columns, "EQ"), x, 0), [x.ndim - 1], "add")


@lowers(aten.linalg_cholesky_ex.default)
def cholesky_ex(b: Builder, x: Value, *, upper: bool, check_errors: bool) -> tuple[Value, Value]:
    """info: 1 where a matrix is not positive-definite (XLA does not tell from which minor on), else 0."""
    if x.numel == 0:
        return b.constant(0, x.dtype, x.shape), b.constant(0, torch.int32, x.shape[:-2])
    factor = _triangle(b, b.op("cholesky", [x], x.shape, x.dtype, f"lower = {'false' if upper else 'true'}"), upper)
    diagonal = _diagonal(b, b.real(factor) if x.dtype.is_complex else factor)
    failed = b.reduce(b.is_nan(diagonal), [diagonal.ndim - 1], "or")
    return factor, shaped(b, failed, 1)


def _solve(
    b: Builder,
    a: Value,
    right: Value,
    upper: bool,
    left: bool = True,
    unit: bool = False,
    transpose: str = "NO_TRANSPOSE",
) -> Value:
    """op(a) x = right, or x op(a) = right with `left` false; batch dimensions broadcast."""
    lead = torch.broadcast_shapes(a.shape[:-2], right.shape[:-2])
    a, right = (b.broadcast_to(v, [*lead, *v.shape[-2:]]) for v in (a, right))
    if right.numel == 0:
        return right
    flags = {"left_side": left, "lower": not upper, "unit_diagonal": unit}
    attributes = ", ".join(f"{name} = {'true' if on else 'false'}" for name, on in flags.items())
    attributes += f", transpose_a = #stablehlo<transpose {transpose}>"
    return b.op("triangular_solve", [a, right], right.shape, right.dtype, attributes)


@lowers(aten.linalg_solve_triangular.default)
def solve_triangular(b: Builder, a: Value, right: Value, *, upper: bool, left: bool, unitriangular: bool) -> Value:
    return _solve(b, a, right, upper, left, unitriangular)


@lowers(aten.triangular_solve.default)
def triangular_solve(
    b: Builder, right: Value, a: Value, upper: bool, transpose: bool, unitriangular: bool
) -> tuple[Value, Value]:
    mode = "TRANSPOSE" if transpose else "NO_TRANSPOSE"
    return _solve(b, a, right, upper, True, unitriangular, mode), b.broadcast_to(a, b.out[1].shape)


def _cholesky_solve(b: Builder, right: Value, factor: Value, upper: bool) -> Value:
    """x of L L^H x = right (or U^H U x = right)."""
    modes = ("ADJOINT", "NO_TRANSPOSE") if upper else ("NO_TRANSPOSE", "ADJOINT")
    for mode in modes:
        right = _solve(b, factor, right, upper, transpose=mode)
    return right


@lowers(aten.cholesky_solve.default, aten._cholesky_solve_helper.default)
def cholesky_solve(b: Builder, right: Value, factor: Value, upper: bool) -> Value:
    return _cholesky_solve(b, right, factor, upper)


@lowers(aten.cholesky_inverse.default)
def cholesky_inverse(b: Builder, factor: Value, upper: bool) -> Value:
    rows, columns = (b.iota(factor.shape, factor.ndim - d, torch.int32) for d in (2, 1))
    identity = b.convert(b.compare(rows, columns, "EQ"), factor.dtype)
    return _cholesky_solve(b, identity, factor, upper)
