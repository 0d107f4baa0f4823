# SPDX-License-Identifier: Apache-2.0
"""What a graph takes, writes and returns: read off the FX graph, before anything is lowered.

A program yields blocks of memory. What the graph returns is found in them: a result of its own, a view of a result
(a saved transpose, the three parts of a projection), an input as it is, or a view of an input. Views are made at
the launch and cost nothing.
"""

from __future__ import annotations

import math
import operator
from collections import defaultdict
from typing import Any, NamedTuple

import torch

from ..lowering.view_operand import layout_of
from .host_updates import HostUpdates, host_updates_of, is_cpu_number, is_host_update

aten = torch.ops.aten
Node = torch.fx.Node

_VIEWS = frozenset(
    {
        aten.alias.default,
        aten.as_strided.default,
        aten.detach.default,
        aten.diagonal.default,
        aten.expand.default,
        aten.permute.default,
        aten.select.int,
        aten.slice.Tensor,
        aten.squeeze.default,
        aten.squeeze.dim,
        aten.squeeze.dims,
        aten.t.default,
        aten.transpose.int,
        aten.unfold.default,
        aten.unsqueeze.default,
        aten.view.default,
        aten.view.dtype,
        aten._unsafe_view.default,
    }
)
# Their results are views, each taken out of the list by an item.
_VIEW_LISTS = frozenset(
    {
        aten.split.Tensor,
        aten.split_with_sizes.default,
        aten.unbind.int,
    }
)


# Namespaces of the operators that are collectives, or wait for one.
_COLLECTIVES = ("_c10d_functional", "_c10d_functional_autograd", "_dtensor")


class Output(NamedTuple):
    """A result of the program. node: None where the graph is not at hand. target: index of the input whose memory
    takes it, or -1."""

    node: Any
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    target: int

    def describe(self) -> tuple[tuple[int, ...], tuple[int, ...], torch.dtype, int]:
        return self.sizes, self.strides, self.dtype, self.target


class Return(NamedTuple):
    """A tensor that the graph returns. source: "input" or "output", and which of them; sizes, strides and
    offset (in elements, from the source's first one) if it is a view of that, else None."""

    source: str
    number: int
    sizes: tuple[int, ...] | None = None
    strides: tuple[int, ...] | None = None
    offset: int = 0


class Outline(NamedTuple):
    """placeholders: none where the graph is not at hand. argument_count: how many there are.
    inputs: the placeholders that are tensors. values: what the others are, by position.
    returns: one an output of the graph; None where it returns no tensor (`values_returned` has those).
    fixed_inputs: inputs whose strides must be as traced, because views of them are returned.
    host_inputs: tensors on the CPU that the device needs whole; host_returns: results that belong there.
    host_updates: what the host computes itself.
    is_awaited: other ranks wait for it, because it holds a collective."""

    placeholders: list[Node]
    argument_count: int
    inputs: list[int]
    outputs: list[Output]
    returns: list[Return | None]
    values_returned: dict[int, Any]
    fixed_inputs: frozenset[int]
    host_inputs: list[int]
    host_returns: list[int]
    host_updates: HostUpdates | None
    is_awaited: bool


def outline_of(graph: torch.fx.Graph) -> Outline:
    placeholders = graph.find_nodes(op="placeholder")
    inputs = [i for i, node in enumerate(placeholders) if isinstance(node.meta.get("val"), torch.Tensor)]
    number = {placeholders[position]: index for index, position in enumerate(inputs)}
    outputs: list[Output] = []
    mutated: set[Node] = set()
    updates: dict[int, Any] = {}
    for node in graph.find_nodes(op="call_function", target=aten.copy_.default):
        target: Any = node.args[0]
        if target in number:
            tensor = target.meta["val"]
            if is_cpu_number(tensor) and is_host_update(node.args[1]):
                updates[number[target]] = node.args[1]
                continue
            outputs.append(Output(node, tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype, number[target]))
            mutated.add(target)
    (output_node,) = graph.find_nodes(op="output")
    returned = output_node.args[0]
    returned = list(returned) if isinstance(returned, (list, tuple)) else [returned]

    roots = {node: _root(node) for node in returned if _is_tensor(node)}
    bases = _bases(roots, number)
    results: list[Return | None] = []
    values: dict[int, Any] = {}
    fixed: set[int] = set()
    host_returns: list[int] = []
    numbers: dict[Node, int] = {}

    def output_of(node: Node) -> int:
        if node not in numbers:
            tensor = node.meta["val"]
            numbers[node] = len(outputs)
            outputs.append(Output(node, tuple(tensor.shape), _dense_strides(tensor), tensor.dtype, -1))
        return numbers[node]

    for position, node in enumerate(returned):
        if not _is_tensor(node):
            results.append(None)
            if node is not None:
                values[position] = node.meta.get("val") if isinstance(node, Node) else node
            continue
        root, tensor = roots[node], node.meta["val"]
        if tensor.device.type == "cpu":
            host_returns.append(position)
        if node in number:
            results.append(Return("input", number[node]))
        elif root in number and root not in mutated and _same_place(root, tensor):
            fixed.add(number[root])
            results.append(_view(Return("input", number[root]), root, tensor))
        elif bases.get(root) is not None and node is not bases[root] and _same_place(root, tensor):
            results.append(_view(Return("output", output_of(bases[root])), bases[root], tensor))
        else:
            results.append(Return("output", output_of(node)))
    host_inputs = [
        index
        for index, position in enumerate(inputs)
        if (node := placeholders[position]).meta["val"].device.type == "cpu"
        and (node in mutated or not is_cpu_number(node.meta["val"]))
    ]
    return Outline(
        placeholders,
        len(placeholders),
        inputs,
        outputs,
        results,
        values,
        frozenset(fixed),
        host_inputs,
        host_returns,
        host_updates_of([placeholders[position] for position in inputs], updates),
        any(is_collective(node) for node in graph.nodes),
    )


def is_collective(node: Node) -> bool:
    """Whether ranks meet there."""
    return isinstance(node.target, torch._ops.OpOverload) and node.target.namespace in _COLLECTIVES


def _is_tensor(node: Any) -> bool:
    return isinstance(node, Node) and isinstance(node.meta.get("val"), torch.Tensor)


def _root(node: Node) -> Node:
    """The node whose memory `node` is a view of; itself, if it is none."""
    while (source := _viewed(node)) is not None and _shares_storage(node, source):
        node = source
    return node


def _viewed(node: Node) -> Any:
    """What `node` may be a view of; None, if it is no view."""
    if node.op == "call_function" and node.target in _VIEWS:
        return node.args[0]
    if node.op == "call_function" and node.target is operator.getitem:
        views: Any = node.args[0]
        if isinstance(views, Node) and views.target in _VIEW_LISTS:
            return views.args[0]
    return None


def _shares_storage(node: Node, source: Any) -> bool:
    if not _is_tensor(source):
        return False
    tensor, parent = node.meta["val"], source.meta["val"]
    same_dtype = tensor.dtype == parent.dtype and tensor.is_conj() == parent.is_conj()
    return same_dtype and tensor.untyped_storage()._cdata == parent.untyped_storage()._cdata


def _same_place(root: Node, tensor: torch.Tensor) -> bool:
    return tensor.device.type != "cpu" and root.meta["val"].device.type != "cpu" and tensor.numel() > 0


def _bases(roots: dict[Node, Node], number: dict[Node, int]) -> dict[Node, Node]:
    """For each computed root, the node to yield as a whole, if its views that are returned add up to it."""
    groups: dict[Node, list[Node]] = defaultdict(list)
    for node, root in roots.items():
        if root not in number:
            groups[root].append(node)
    bases: dict[Node, Node] = {}
    for root, nodes in groups.items():
        whole = root.meta["val"]
        layout = layout_of(whole.shape, whole.stride())
        if whole.numel() == 0 or not layout.dense or layout.repeated or whole.storage_offset() or whole.is_conj():
            continue
        if root in nodes or sum(node.meta["val"].numel() for node in nodes) >= whole.numel():
            bases[root] = root
    return bases


def _view(source: Return, node: Node, tensor: torch.Tensor) -> Return:
    offset = tensor.storage_offset() - node.meta["val"].storage_offset()
    return source._replace(sizes=tuple(tensor.shape), strides=tuple(tensor.stride()), offset=offset)


def _dense_strides(tensor: torch.Tensor) -> tuple[int, ...]:
    """Strides of a new tensor: those of the trace, unless they leave gaps or overlap."""
    layout = layout_of(tensor.shape, tensor.stride())
    if (layout.dense and not layout.repeated) or math.prod(tensor.shape) == 0:
        return tuple(tensor.stride())
    return torch.empty(tensor.shape, device="meta").stride()
