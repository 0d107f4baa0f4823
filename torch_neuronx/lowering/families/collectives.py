# SPDX-License-Identifier: Apache-2.0
"""Collectives inside graphs (`torch.distributed._functional_collectives`).

Only graphs come here: an eager functional collective goes through the process group. On the software core each
becomes a call of one of its collective kernels. A group is named by its place among the groups of the process, so that
all ranks share one program.

Each collective takes a token of the one before and returns one, because ranks must meet in one order, and XLA may
otherwise run independent calls side by side. A collective whose result nobody uses happens all the same: another
rank may need it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from ...distributed.groups import Group, group_of
from ...stablehlo import Builder, Value
from ..registry import LoweringError, lowers

functional = torch.ops._c10d_functional
differentiable = torch.ops._c10d_functional_autograd  # the same, as older programs call them

_REDUCTIONS = {
    "sum": "sum",
    "avg": "average",
    "product": "product",
    "min": "min",
    "max": "max",
    "band": "and",
    "bor": "or",
    "bxor": "xor",
}
_TOKEN = ((), torch.int32)


def _call(b: Builder, name: str, x: Value, shape: Sequence[int], config: str) -> Value:
    if not b.software:
        raise LoweringError(
            f"{b.location.operator}: graphs contain collectives on the software NeuronCore only so far; call the "
            "collective outside of the compiled function"
        )
    token = b.collective_token if b.collective_token is not None else b.constant(0, torch.int32)
    types = [(shape, x.dtype), _TOKEN]
    result, b.collective_token = b.custom_call(f"neuroncore.{name}", [x, token], types, config, has_side_effect=True)
    return result


def _reduction(b: Builder, name: str) -> str:
    if name.lower() not in _REDUCTIONS:
        raise LoweringError(f"{b.location.operator}: the reduction '{name}' is none of {', '.join(_REDUCTIONS)}")
    return _REDUCTIONS[name.lower()]


def _all_reduce(b: Builder, x: Value, reduce_op: str, group: Group) -> Value:
    if not math.prod(x.shape):
        return x
    return _call(b, "all_reduce", x, x.shape, f"group={group.ordinal};op={_reduction(b, reduce_op)}")


def _all_gather(b: Builder, x: Value, group: Group) -> Value:
    # A 0-dim tensor of each rank makes a vector.
    shape = (group.size * x.shape[0], *x.shape[1:]) if x.ndim else (group.size,)
    if not math.prod(shape):
        return b.constant(0, x.dtype, shape)
    return _call(b, "all_gather", x, shape, f"group={group.ordinal}")


def _reduce_scatter(b: Builder, x: Value, reduce_op: str, group: Group) -> Value:
    shape = (x.shape[0] // group.size, *x.shape[1:])
    if not math.prod(shape):
        return b.constant(0, x.dtype, shape)
    return _call(b, "reduce_scatter", x, shape, f"group={group.ordinal};op={_reduction(b, reduce_op)}")


def _all_to_all(b: Builder, x: Value, group: Group) -> Value:
    return _call(b, "all_to_all", x, x.shape, f"group={group.ordinal}") if math.prod(x.shape) else x


@lowers(functional.all_reduce.default)
def all_reduce(b: Builder, x: Value, reduce_op: str, group_name: Any) -> Value:
    return _all_reduce(b, x, reduce_op, group_of(group_name))


@lowers(functional.all_reduce_coalesced.default)
def all_reduce_coalesced(b: Builder, inputs: Sequence[Value], reduce_op: str, group_name: Any) -> list[Value]:
    return [_all_reduce(b, x, reduce_op, group_of(group_name)) for x in inputs]


@lowers(functional.all_gather_into_tensor.default, differentiable.all_gather_into_tensor.default)
def all_gather_into_tensor(b: Builder, x: Value, group_size: int, group_name: Any) -> Value:
    return _all_gather(b, x, group_of(group_name))


@lowers(functional.all_gather_into_tensor_coalesced.default)
def all_gather_into_tensor_coalesced(
    b: Builder, inputs: Sequence[Value], group_size: int, group_name: Any
) -> list[Value]:
    return [_all_gather(b, x, group_of(group_name)) for x in inputs]


@lowers(functional.reduce_scatter_tensor.default, differentiable.reduce_scatter_tensor.default)
def reduce_scatter_tensor(b: Builder, x: Value, reduce_op: str, group_size: int, group_name: Any) -> Value:
    return _reduce_scatter(b, x, reduce_op, group_of(group_name))


@lowers(functional.reduce_scatter_tensor_coalesced.default)
def reduce_scatter_tensor_coalesced(
    b: Builder, inputs: Sequence[Value], reduce_op: str, group_size: int, group_name: Any
) -> list[Value]:
    return [_reduce_scatter(b, x, reduce_op, group_of(group_name)) for x in inputs]


@lowers(functional.all_to_all_single.default, differentiable.all_to_all_single.default)
def all_to_all_single(
    b: Builder, x: Value, output_split_sizes: Sequence[int], input_split_sizes: Sequence[int], group_name: Any
) -> Value:
    group = group_of(group_name)
    name = b.location.operator
    for what, sizes in (("output", output_split_sizes), ("input", input_split_sizes)):
        if len(sizes) != group.size or min(sizes) < 0:
            raise LoweringError(
                f"{name}: expected a split size of the {what} for each of {group.size} ranks, got {list(sizes)}"
            )
    if sum(input_split_sizes) != x.shape[0]:
        raise LoweringError(
            f"{name}: the split sizes of the input, {list(input_split_sizes)}, add up to {sum(input_split_sizes)}, "
            f"but its sizes are {list(x.shape)}"
        )
    if len({*output_split_sizes, *input_split_sizes}) == 1:
        return _all_to_all(b, x, group)
    return _uneven_all_to_all(b, x, output_split_sizes, input_split_sizes, group)


def _uneven_all_to_all(
    b: Builder, x: Value, output_split_sizes: Sequence[int], input_split_sizes: Sequence[int], group: Group
) -> Value:
    """Split sizes are this rank's own, so the ranks' programs differ in them, as they do where shapes differ.

    A rank takes part even if it gives or gets nothing; then one element stands for none.
    """
    row = math.prod(x.shape[1:])
    send, receive = ([row * n for n in sizes] for sizes in (input_split_sizes, output_split_sizes))
    shape = (sum(output_split_sizes), *x.shape[1:])
    operand = b.reshape(x, (sum(send),)) if sum(send) else b.constant(0, x.dtype, (1,))
    config = f"group={group.ordinal};send={_listed(send)};receive={_listed(receive)}"
    result = _call(b, "all_to_all", operand, (max(1, sum(receive)),), config)
    return b.reshape(result, shape) if sum(receive) else b.constant(0, x.dtype, shape)


def _listed(numbers: Sequence[int]) -> str:
    return ",".join(map(str, numbers))


@lowers(functional.broadcast.default)
def broadcast(b: Builder, x: Value, src: int, group_name: Any) -> Value:
    return _call(b, "broadcast", x, x.shape, f"group={group_of(group_name).ordinal};root={src}")


@lowers(functional.wait_tensor.default)
def wait_tensor(b: Builder, x: Value) -> Value:
    return x  # a program's values are there when they are used


@lowers(torch.ops._dtensor.shard_dim_alltoall.default)
def shard_dim_alltoall(b: Builder, x: Value, gather_dim: int, shard_dim: int, group_name: Any) -> Value:
    """From sharded along `gather_dim` to sharded along `shard_dim`."""
    group = group_of(group_name)
    n, shape = group.size, x.shape
    # The parts of `shard_dim` lead, one for each rank.
    parts = b.reshape(x, [*shape[:shard_dim], n, shape[shard_dim] // n, *shape[shard_dim + 1 :]])
    order = [shard_dim, *(d for d in range(len(shape) + 1) if d != shard_dim)]
    exchanged = _all_to_all(b, b.transpose(parts, order), group)
    # What came from each rank lines up along `gather_dim`.
    order = [d + 1 for d in range(len(shape))]
    order.insert(gather_dim, 0)
    result = list(exchanged.shape[1:])
    result[gather_dim] *= n
    return b.reshape(b.transpose(exchanged, order), result)
