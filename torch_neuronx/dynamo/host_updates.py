# SPDX-License-Identifier: Apache-2.0
"""Numbers on the CPU that a graph updates from such numbers alone, as an optimizer counts its steps: the host
computes them, so that nothing waits for the device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

Node = torch.fx.Node


class HostUpdates(NamedTuple):
    """inputs: those that are written, by number. graph: takes all inputs that are numbers on the CPU, in order, and
    returns what the written ones become."""

    inputs: list[int]
    graph: torch.fx.Graph


def is_cpu_number(tensor: torch.Tensor) -> bool:
    return tensor.device.type == "cpu" and tensor.dim() == 0


def is_host_update(value: Any) -> bool:
    """Whether only numbers on the CPU decide `value`, a node."""
    return isinstance(value, Node) and all(
        _is_number(n) and (n.op == "placeholder" or isinstance(n.target, torch._ops.OpOverload)) for n in _cone(value)
    )


def host_updates_of(inputs: Sequence[Node], updates: dict[int, Any]) -> HostUpdates | None:
    """inputs: the graph's placeholders that are tensors. updates: by number of an input, what it becomes."""
    if not updates:
        return None
    graph = torch.fx.Graph()
    copies = {node: graph.placeholder(node.name) for node in inputs if _is_number(node)}
    wanted = {node for value in updates.values() for node in _cone(value)}
    for node in inputs[0].graph.nodes:
        if node in wanted and node not in copies:
            copies[node] = graph.node_copy(node, lambda n: copies[n])
    graph.output([copies[value] for value in updates.values()])
    return HostUpdates(list(updates), graph)


def function_of(updates: HostUpdates) -> Callable[..., list[torch.Tensor]]:
    return torch.fx.GraphModule(torch.nn.Module(), updates.graph).forward


def _is_number(node: Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and is_cpu_number(value)


def _cone(node: Node) -> set[Node]:
    """`node` and everything that it depends on."""
    seen: set[Node] = set()
    todo = [node]
    while todo:
        node = todo.pop()
        if node not in seen:
            seen.add(node)
            todo.extend(node.all_input_nodes)
    return seen


# -- as a record of the index --------------------------------------------------------------------


class _Unrecordable(Exception):
    """An argument that JSON has no form for."""


def to_record(updates: HostUpdates) -> dict[str, Any] | None:
    """What JSON can hold of it; None when something in it has no such form."""
    numbers: dict[Node, int] = {}
    calls = []
    try:
        for node in updates.graph.nodes:
            numbers[node] = len(numbers)
            if node.op == "call_function":
                calls.append([str(node.target), _encoded(node.args, numbers), _encoded(node.kwargs, numbers)])
        returned = _encoded(updates.graph.output_node().args[0], numbers)
    except _Unrecordable:
        return None
    count = len(updates.graph.find_nodes(op="placeholder"))
    return {"inputs": updates.inputs, "count": count, "calls": calls, "returned": returned}


def from_record(record: dict[str, Any]) -> HostUpdates:
    graph = torch.fx.Graph()
    nodes = [graph.placeholder(f"number{index}") for index in range(record["count"])]
    for name, args, kwargs in record["calls"]:
        target: Any = torch.ops
        for part in name.split("."):
            target = getattr(target, part)
        nodes.append(graph.call_function(target, tuple(_decoded(args, nodes)), _decoded(kwargs, nodes)))
    graph.output(_decoded(record["returned"], nodes))
    return HostUpdates(record["inputs"], graph)


def _encoded(value: Any, numbers: dict[Node, int]) -> Any:
    if isinstance(value, Node):
        return {"node": numbers[value]}
    if isinstance(value, torch.dtype):
        return {"dtype": str(value).removeprefix("torch.")}
    if isinstance(value, (tuple, list)):
        return [_encoded(entry, numbers) for entry in value]
    if isinstance(value, dict):
        return {"": {key: _encoded(entry, numbers) for key, entry in value.items()}}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise _Unrecordable


def _decoded(value: Any, nodes: Sequence[Node]) -> Any:
    if isinstance(value, list):
        return [_decoded(entry, nodes) for entry in value]
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "node":
        return nodes[content]
    if kind == "dtype":
        return getattr(torch, content)
    return {key: _decoded(entry, nodes) for key, entry in content.items()}
