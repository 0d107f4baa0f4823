# SPDX-License-Identifier: Apache-2.0
"""Triangles of matrices, and the cross product."""

from __future__ import annotations

import torch

from ...stablehlo import Builder, Value
from ..indexing import wrap_dim
from ..promotion import opmath
from ..registry import lowers

aten = torch.ops.aten


def _triangle(b: Builder, x: Value, diagonal: int, direction: str) -> Value:
    matrix = x.shape[-2:]
    edge = b.add(b.iota(matrix, 0), diagonal)
    inside = b.compare(b.iota(matrix, 1), edge, direction)
    return b.select(inside, x, 0)


@lowers(aten.tril.default)
def tril(b: Builder, x: Value, diagonal: int) -> Value:
    return _triangle(b, x, diagonal, "LE")


@lowers(aten.triu.default)
def triu(b: Builder, x: Value, diagonal: int) -> Value:
    return _triangle(b, x, diagonal, "GE")


@lowers(aten.linalg_cross.default)
def linalg_cross(b: Builder, x: Value, y: Value, *, dim: int) -> Value:
    out = b.out[0]
    wide = opmath(out.dtype)
    x, y = (b.broadcast_to(b.convert(v, wide), out.shape) for v in (x, y))
    dim = wrap_dim(dim, out.dim())

    def turned(v: Value, by: int) -> Value:
        return b.concatenate([b.slice_dim(v, dim, by, 3), b.slice_dim(v, dim, 0, by)], dim)

    product = b.subtract(b.multiply(turned(x, 1), turned(y, 2)), b.multiply(turned(x, 2), turned(y, 1)))
    return b.convert(product, out.dtype)
