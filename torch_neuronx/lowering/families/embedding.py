# SPDX-License-Identifier: Apache-2.0
"""Embedding tables: rows by number, bags of rows, and their gradients.

`add_embedding_gradient` is for a table that is the output layer's weight as well (see
torch_neuronx/dynamo/tied_embedding.py): the sum of its two gradients.
"""

from __future__ import annotations

import torch

from ...stablehlo import Builder, Value
from ..indexing import put_along, put_flat, put_rows, running, take_rows
from ..promotion import opmath
from ..registry import LIBRARY, LoweringError, lowers

aten = torch.ops.aten

LIBRARY.define(
    "add_embedding_gradient(Tensor total, Tensor grad, Tensor indices, int padding_idx, bool scale_grad_by_freq) "
    "-> Tensor"
)
LIBRARY.impl(
    "add_embedding_gradient",
    lambda total, grad, indices, padding_idx, scale_grad_by_freq: (
        total + aten.embedding_dense_backward(grad, indices, total.shape[0], padding_idx, scale_grad_by_freq)
    ),
    "CompositeExplicitAutograd",
)
operators = torch.ops.torch_neuronx

SUM, MEAN, MAX = range(3)


@lowers(aten.embedding.default)
def embedding(
    b: Builder, weight: Value, indices: Value, padding_idx: int, scale_grad_by_freq: bool, sparse: bool
) -> Value:
    if indices.numel == 0:
        return b.constant(0, weight.dtype, b.out[0].shape)
    return take_rows(b, weight, b.check_index(indices, weight.shape[0]), 0)


def _frequency(b: Builder, indices: Value, num_weights: int, dtype: torch.dtype) -> Value:
    """How often each element of the 1-D `indices` occurs in them."""
    ones = b.constant(1, dtype, indices.shape)
    counts = put_flat(b, b.constant(0, dtype, (num_weights,)), indices, ones, "sum")
    return take_rows(b, counts, indices, 0)


def _scale_rows(b: Builder, rows: Value, factors: Value) -> Value:
    return b.multiply(rows, b.reshape(factors, (*factors.shape, 1)))


@lowers(aten.embedding_dense_backward.default)
def embedding_dense_backward(
    b: Builder, grad: Value, indices: Value, num_weights: int, padding_idx: int, scale_grad_by_freq: bool
) -> Value:
    zeros = b.constant(0, b.out[0].dtype, b.out[0].shape)
    return _add_gradient(b, zeros, grad, indices, padding_idx, scale_grad_by_freq)


@lowers(operators.add_embedding_gradient.default)
def add_embedding_gradient(
    b: Builder, total: Value, grad: Value, indices: Value, padding_idx: int, scale_grad_by_freq: bool
) -> Value:
    return _add_gradient(b, total, grad, indices, padding_idx, scale_grad_by_freq)


def _add_gradient(
    b: Builder, total: Value, grad: Value, indices: Value, padding_idx: int, scale_grad_by_freq: bool
) -> Value:
    """`total`, a value of the table's shape, with the gradients of the rows that were looked up added."""
    if indices.numel == 0 or grad.numel == 0:
        return total
    wide = opmath(total.dtype)
    num_weights, width = total.shape
    rows = b.reshape(b.convert(grad, wide), (indices.numel, width))
    indices = b.reshape(b.check_index(indices, num_weights), (indices.numel,))
    if scale_grad_by_freq:
        rows = _scale_rows(b, rows, b.divide(1.0, _frequency(b, indices, num_weights, wide)))
    if padding_idx >= 0:
        # Beyond the end, where scatter drops the row.
        indices = b.select(b.compare(indices, padding_idx, "EQ"), num_weights, indices)
    if wide == total.dtype:
        return put_rows(b, total, indices, rows, 0, "sum")
    # Half types: rows of one number are added up in float32 before they are rounded, in a tensor of as many rows as
    # were looked up, since a float32 table would be the larger one. The first lookup of a number stands for all.
    count = indices.numel
    lookups = b.iota((count,), 0, torch.int32)
    first = put_flat(b, b.constant(count, torch.int32, (num_weights + 1,)), indices, lookups, "amin")
    first = take_rows(b, first, indices, 0)
    sums = take_rows(b, put_rows(b, b.constant(0, wide, rows.shape), first, rows, 0, "sum"), first, 0)
    sums = b.add(sums, b.convert(take_rows(b, total, indices, 0), wide))
    return put_rows(b, total, indices, b.convert(sums, total.dtype), 0, "replace")


@lowers(aten.embedding_renorm.default, static=("max_norm", "norm_type"))
def embedding_renorm(b: Builder, weight: Value, indices: Value, max_norm: float, norm_type: float) -> Value:
    """The rows named by `indices` scaled down to norm `max_norm` where theirs is larger."""
    if indices.numel == 0:
        return weight
    wide = opmath(weight.dtype)
    indices = b.reshape(b.check_index(indices, weight.shape[0]), (indices.numel,))
    rows = b.convert(take_rows(b, weight, indices, 0), wide)
    size = b.abs(rows)
    if norm_type == float("inf"):
        norms = b.reduce(size, [1], "maximum")
    else:
        power = size if norm_type == 1 else b.power(size, b.constant(norm_type, wide))
        norms = b.power(b.reduce(power, [1], "add"), b.constant(1 / norm_type, wide))
    # The small number is PyTorch's.
    scale = b.divide(b.constant(max_norm, wide), b.add(norms, 1e-7))
    factors = b.select(b.compare(norms, max_norm, "GT"), scale, 1.0)
    scaled = b.convert(_scale_rows(b, rows, factors), weight.dtype)
    return put_rows(b, weight, indices, scaled, 0, "replace")


# -- bags ----------------------------------------------------------------------------------------


def _bag_of(b: Builder, offsets: Value, count: int, bags: int, dtype: torch.dtype) -> Value:
    """The bag of every position: the number of bags that begin at or before it, less one."""
    begins = b.slice_dim(b.convert(offsets, dtype), 0, 0, bags)
    ones = b.constant(1, dtype, begins.shape)
    # A bag that begins at the end is empty; scatter drops it.
    marks = put_flat(b, b.constant(0, dtype, (count,)), begins, ones, "sum")
    return b.subtract(running(b, marks, 0, "sum"), 1)


@lowers(aten._embedding_bag.default, aten._embedding_bag_forward_only.default)
def embedding_bag(
    b: Builder,
    weight: Value,
    indices: Value,
    offsets: Value,
    scale_grad_by_freq: bool,
    mode: int,
    sparse: bool,
    per_sample_weights: Value | None,
    include_last_offset: bool,
    padding_idx: int,
) -> tuple[Value, ...]:
    """Results: the bags, the bag of every index, the size of every bag, the rows that gave the maxima."""
    output, offset2bag, bag_size, max_indices = b.out
    bags, width = output.shape
    count = indices.shape[0]
    dtype = indices.dtype
    wide = opmath(weight.dtype)
    if count == 0 or bags == 0 or width == 0:
        shapes = (output, offset2bag, bag_size, max_indices)
        return tuple(b.constant(0, meta.dtype, meta.shape) for meta in shapes)

    indices = b.check_index(indices, weight.shape[0])
    bag = _bag_of(b, offsets, count, bags, dtype)
    real = b.constant(True, torch.bool, (count,))
    if padding_idx >= 0:
        real = b.compare(indices, padding_idx, "NE")
    # Rows that do not count go to a bag beyond the end.
    target = b.select(real, bag, bags)
    sizes = put_flat(b, b.constant(0, dtype, (bags,)), target, b.constant(1, dtype, (count,)), "sum")
    rows = b.convert(take_rows(b, weight, indices, 0), wide)
    if per_sample_weights is not None:
        rows = _scale_rows(b, rows, b.convert(per_sample_weights, wide))

    found = b.constant(0, max_indices.dtype, max_indices.shape)
    if mode == MAX:
        lowest = b.constant(float("-inf"), wide, (bags, width))
        result = put_rows(b, lowest, target, rows, 0, "amax")
        filled = b.broadcast_to(b.compare(b.reshape(sizes, (bags, 1)), 0, "GT"), (bags, width))
        # The first position of the bag that holds the maximum, then the row that stood there.
        best = b.compare(rows, take_rows(b, result, bag, 0), "EQ")
        place = b.select(best, b.iota((count, width), 0, dtype), count)
        first = put_rows(b, b.constant(count, dtype, (bags, width)), target, place, 0, "amin")
        found = b.select(filled, take_rows(b, indices, first, 0), 0)
        found = b.convert(found, max_indices.dtype)
        result = b.select(filled, result, 0)
    else:
        result = put_rows(b, b.constant(0, wide, (bags, width)), target, rows, 0, "sum")
        if mode == MEAN:
            result = _scale_rows(b, result, b.divide(1.0, b.convert(b.maximum(sizes, 1), wide)))
    missing = bag_size.shape[0] - bags
    sizes = b.convert(b.pad(sizes, [0], [missing]), bag_size.dtype)
    return b.convert(result, weight.dtype), b.convert(bag, offset2bag.dtype), sizes, found


@lowers(aten._embedding_bag_dense_backward.default)
def embedding_bag_dense_backward(
    b: Builder,
    grad: Value,
    indices: Value,
    offset2bag: Value,
    bag_size: Value,
    maximum_indices: Value,
    num_weights: int,
    scale_grad_by_freq: bool,
    mode: int,
    per_sample_weights: Value | None,
    padding_idx: int,
) -> Value:
    out = b.out[0]
    wide = opmath(out.dtype)
    bags, width = grad.shape
    zeros = b.constant(0, wide, (num_weights, width))
    if indices.numel == 0 or grad.numel == 0:
        return b.convert(zeros, out.dtype)
    grad = b.convert(grad, wide)
    sizes = b.slice_dim(bag_size, 0, 0, bags)
    if mode == MAX:
        filled = b.compare(b.reshape(sizes, (bags, 1)), 0, "GT")
        grad = b.select(b.broadcast_to(filled, grad.shape), grad, 0)
        return b.convert(put_along(b, zeros, maximum_indices, grad, 0, "sum"), out.dtype)
    if mode == MEAN:
        grad = _scale_rows(b, grad, b.divide(1.0, b.convert(b.maximum(sizes, 1), wide)))
    rows = take_rows(b, grad, offset2bag, 0)
    if per_sample_weights is not None:
        rows = _scale_rows(b, rows, b.convert(per_sample_weights, wide))
    if scale_grad_by_freq:
        rows = _scale_rows(b, rows, b.divide(1.0, _frequency(b, indices, num_weights, wide)))
    if padding_idx >= 0:
        indices = b.select(b.compare(indices, padding_idx, "EQ"), num_weights, indices)
    return b.convert(put_rows(b, zeros, indices, rows, 0, "sum"), out.dtype)


@lowers(aten._embedding_bag_backward.default)
def embedding_bag_backward(
    b: Builder,
    grad: Value,
    indices: Value,
    offsets: Value,
    offset2bag: Value,
    bag_size: Value,
    maximum_indices: Value,
    num_weights: int,
    scale_grad_by_freq: bool,
    mode: int,
    sparse: bool,
    per_sample_weights: Value | None,
    padding_idx: int,
) -> Value:
    if sparse:
        raise LoweringError("_embedding_bag_backward: sparse gradients are not available on the neuron device")
    return embedding_bag_dense_backward(
        b,
        grad,
        indices,
        offset2bag,
        bag_size,
        maximum_indices,
        num_weights,
        scale_grad_by_freq,
        mode,
        per_sample_weights,
        padding_idx,
    )


@lowers(aten._embedding_bag_per_sample_weights_backward.default)
def embedding_bag_per_sample_weights_backward(
    b: Builder,
    grad: Value,
    weight: Value,
    indices: Value,
    offsets: Value,
    offset2bag: Value,
    mode: int,
    padding_idx: int,
) -> Value:
    """The product of a row and its bag's gradient."""
    out = b.out[0]
    wide = opmath(out.dtype)
    if indices.numel == 0 or grad.numel == 0:
        return b.constant(0, out.dtype, out.shape)
    rows = b.convert(take_rows(b, weight, indices, 0), wide)
    product = b.multiply(rows, take_rows(b, b.convert(grad, wide), offset2bag, 0))
    total = b.reduce(product, [1], "add")
    if padding_idx >= 0:
        total = b.select(b.compare(indices, padding_idx, "EQ"), 0, total)
    return b.convert(total, out.dtype)
