# SPDX-License-Identifier: Apache-2.0
"""Images whose channels lie last in memory, inside of a program.

oneDNN convolves them up to a third faster than PyTorch's default order, and normalizes nothing in between: so in a
graph with several convolutions the host kernel takes and gives them in that order, and what lies between two kernels
is computed in it. Every value keeps PyTorch's shape, (N, C, spatial ...): one with its channels last is a transposed
value, which the rules of this module's callers read as it was before (`Builder.transposed`). What other rules make of
the transposes is up to the compiler. Inputs and results of the program keep their strides.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..stablehlo import Builder, Value

aten = torch.ops.aten


def last(rank: int) -> list[int]:
    """The permutation from (N, C, spatial ...) to (N, spatial ..., C)."""
    return [0, *range(2, rank), 1]


def first(rank: int) -> list[int]:
    """The permutation from (N, spatial ..., C) to (N, C, spatial ...)."""
    return [0, rank - 1, *range(1, rank - 1)]


def source(b: Builder, x: Value) -> Value | None:
    """`x` as (N, spatial ..., C), if that is how it came to be."""
    found = b.transposed.get(x.name)
    return found[0] if found is not None and x.ndim > 3 and list(found[1]) == first(x.ndim) else None


def to_last(b: Builder, x: Value) -> Value:
    found = source(b, x)
    return b.transpose(x, last(x.ndim)) if found is None else found


def to_first(b: Builder, x: Value) -> Value:
    return b.transpose(x, first(x.ndim))


# -- operators that treat every element alike ----------------------------------------------------


def lower_pointwise(
    b: Builder,
    overload: torch._ops.OpOverload,
    arguments: Sequence[Any],
    out: torch.Tensor,
    lower: Callable[[tuple[Any, ...], torch.Tensor], Value],
) -> Value | None:
    """The result of a pointwise operator whose operands of full size all have their channels last; None for others.

    lower: applies the operator's rule to arguments, with a meta tensor of the result.
    """
    if torch.Tag.pointwise not in overload.tags and overload is not aten._to_copy.default:
        return None
    values = [v for v in arguments if isinstance(v, Value)]
    shape = tuple(out.shape)
    full = [v for v in values if v.shape == shape]
    if not full or any(source(b, v) is None for v in full) or any(v.ndim > len(shape) for v in values):
        return None
    permuted = tuple(_reordered(b, v, len(shape)) if isinstance(v, Value) else v for v in arguments)
    reordered = torch.empty([shape[d] for d in last(len(shape))], dtype=out.dtype, device="meta")
    return to_first(b, lower(permuted, reordered))


def _reordered(b: Builder, x: Value, rank: int) -> Value:
    """An operand, or what is broadcast to its shape, as one of an operator on images with their channels last."""
    if x.ndim < 2 and x.numel == 1:
        return x
    return to_last(b, b.reshape(x, (1,) * (rank - x.ndim) + x.shape))


# -- whether a graph gains -----------------------------------------------------------------------


def pays(graph: torch.fx.Graph, serves: Callable[[torch.fx.Node], bool]) -> bool:
    """Whether what convolutions read and write is more than what would be reordered to enter or leave the graph.

    serves: whether a host kernel serves a node `aten.convolution`.
    """
    convolutions = [
        node for node in graph.find_nodes(op="call_function", target=aten.convolution.default) if serves(node)
    ]
    weights = {node.args[1] for node in convolutions}
    within = sum(math.prod(_tensor(n).shape) for node in convolutions for n in (node, node.args[0]))
    (output,) = graph.find_nodes(op="output")
    ends = [*graph.find_nodes(op="placeholder"), *output.all_input_nodes]
    across = sum(_tensor(node).numel() for node in ends if node not in weights and _is_default_image(node))
    return within > 2 * across


def _tensor(node: Any) -> torch.Tensor:
    return node.meta["val"]


def _is_default_image(node: torch.fx.Node) -> bool:
    tensor = node.meta.get("val")
    return isinstance(tensor, torch.Tensor) and tensor.dim() > 3 and tensor.is_contiguous()
