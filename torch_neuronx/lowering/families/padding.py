# SPDX-License-Identifier: Apache-2.0
"""Padding: constant, reflected, replicated and circular, and the gradients of reflection and replication."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from ...stablehlo import Builder, Value
from ..promotion import opmath
from ..registry import lowers

aten = torch.ops.aten


class Edge(NamedTuple):
    """Padding of one dimension; negative amounts cut off."""

    dim: int
    low: int
    high: int


def edges(pad: Sequence[int], rank: int) -> list[Edge]:
    """PyTorch's list of pairs, which starts with the last dimension; dimensions without padding are left out."""
    pairs = [Edge(rank - 1 - i, pad[2 * i], pad[2 * i + 1]) for i in range(len(pad) // 2)]
    return [edge for edge in pairs if edge.low or edge.high]


@lowers(aten.constant_pad_nd.default)
def constant_pad_nd(b: Builder, x: Value, pad: Sequence[int], value: Value | float) -> Value:
    low, high = [0] * x.ndim, [0] * x.ndim
    for edge in edges(pad, x.ndim):
        low[edge.dim], high[edge.dim] = edge.low, edge.high
    return b.pad(x, low, high, b.value(value, x.dtype))


def _cut(b: Builder, x: Value, dim: int, low: int, high: int) -> Value:
    """`x` without its first -low and last -high slices."""
    return b.slice_dim(x, dim, max(0, -low), x.shape[dim] - max(0, -high))


def _reflect(b: Builder, x: Value, edge: Edge) -> Value:
    n, dim = x.shape[edge.dim], edge.dim
    parts = [x]
    if edge.low > 0:
        parts.insert(0, b.reverse(b.slice_dim(x, dim, 1, 1 + edge.low), [dim]))
    if edge.high > 0:
        parts.append(b.reverse(b.slice_dim(x, dim, n - 1 - edge.high, n - 1), [dim]))
    return _cut(b, b.concatenate(parts, dim), dim, edge.low, edge.high)


def _replicate(b: Builder, x: Value, edge: Edge) -> Value:
    n, dim = x.shape[edge.dim], edge.dim

    def repeated(at: int, count: int) -> Value:
        shape = [count if d == dim else size for d, size in enumerate(x.shape)]
        return b.broadcast_to(b.slice_dim(x, dim, at, at + 1), shape)

    parts = [x]
    if edge.low > 0:
        parts.insert(0, repeated(0, edge.low))
    if edge.high > 0:
        parts.append(repeated(n - 1, edge.high))
    return _cut(b, b.concatenate(parts, dim), dim, edge.low, edge.high)


def _circular(b: Builder, x: Value, edge: Edge) -> Value:
    # Unlike the others, what is cut off does not come round again.
    x = _cut(b, x, edge.dim, edge.low, edge.high)
    n, dim = x.shape[edge.dim], edge.dim
    parts = [x]
    if edge.low > 0:
        parts.insert(0, b.slice_dim(x, dim, n - edge.low, n))
    if edge.high > 0:
        parts.append(b.slice_dim(x, dim, 0, edge.high))
    return b.concatenate(parts, dim)


def _padding_rule(step):
    def rule(b: Builder, x: Value, pad: Sequence[int]) -> Value:
        # The last dimension first: the corners come from what is padded already.
        for edge in edges(pad, x.ndim):
            x = step(b, x, edge)
        return x

    return rule


lowers(aten.reflection_pad1d.default, aten.reflection_pad2d.default, aten.reflection_pad3d.default)(
    _padding_rule(_reflect)
)
lowers(aten.replication_pad1d.default, aten.replication_pad2d.default, aten.replication_pad3d.default)(
    _padding_rule(_replicate)
)
lowers(aten._pad_circular.default, whole=True)(_padding_rule(_circular))


# -- gradients: each part of the padded gradient added where it came from --------------------------


def _placed(b: Builder, part: Value, dim: int, at: int, size: int) -> Value:
    """Zeros of length `size` along `dim` with `part` from position `at` on."""
    low = [at if d == dim else 0 for d in range(part.ndim)]
    high = [size - at - part.shape[dim] if d == dim else 0 for d in range(part.ndim)]
    return b.pad(part, low, high)


def _middle(b: Builder, grad: Value, edge: Edge, n: int) -> Value:
    """The gradient of what was not cut off, at its place in the operand."""
    low, high = max(0, edge.low), max(0, edge.high)
    kept = b.slice_dim(grad, edge.dim, low, grad.shape[edge.dim] - high)
    return _placed(b, kept, edge.dim, max(0, -edge.low), n)


def _reflect_backward(b: Builder, grad: Value, edge: Edge, n: int) -> Value:
    dim, length = edge.dim, grad.shape[edge.dim]
    total = _middle(b, grad, edge, n)
    if edge.low > 0:
        part = b.reverse(b.slice_dim(grad, dim, 0, edge.low), [dim])
        total = b.add(total, _placed(b, part, dim, 1, n))
    if edge.high > 0:
        part = b.reverse(b.slice_dim(grad, dim, length - edge.high, length), [dim])
        total = b.add(total, _placed(b, part, dim, n - 1 - edge.high, n))
    return total


def _replicate_backward(b: Builder, grad: Value, edge: Edge, n: int) -> Value:
    dim, length = edge.dim, grad.shape[edge.dim]
    total = _middle(b, grad, edge, n)
    if edge.low > 0:
        part = b.reduce(b.slice_dim(grad, dim, 0, edge.low), [dim], "add", keepdim=True)
        total = b.add(total, _placed(b, part, dim, 0, n))
    if edge.high > 0:
        part = b.reduce(b.slice_dim(grad, dim, length - edge.high, length), [dim], "add", keepdim=True)
        total = b.add(total, _placed(b, part, dim, n - 1, n))
    return total


def _backward_rule(step):
    def rule(b: Builder, grad: Value, x: Value, pad: Sequence[int]) -> Value:
        dtype = grad.dtype
        grad = b.convert(grad, opmath(dtype))
        for edge in reversed(edges(pad, x.ndim)):
            grad = step(b, grad, edge, x.shape[edge.dim])
        return b.convert(grad, dtype)

    return rule


lowers(
    aten.reflection_pad1d_backward.default,
    aten.reflection_pad2d_backward.default,
    aten.reflection_pad3d_backward.default,
)(_backward_rule(_reflect_backward))
lowers(
    aten.replication_pad1d_backward.default,
    aten.replication_pad2d_backward.default,
    aten.replication_pad3d_backward.default,
)(_backward_rule(_replicate_backward))
