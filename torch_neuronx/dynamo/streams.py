# SPDX-License-Identifier: Apache-2.0
"""Stream operators in a graph: taken out of it, and done by the host once the graph is launched.

The streams of a NeuronCore share one queue, which keeps their order, and the order within a program is that of its
data. So waiting for another stream needs nothing. What the host can see is left: it waits, or an event is recorded;
the whole graph then lies before the event.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

Node = torch.fx.Node

_SEEN_BY_THE_HOST = frozenset({"record_event", "synchronize_device", "synchronize_event", "synchronize_stream"})


def take_stream_operators(gm: torch.fx.GraphModule) -> list[Callable[[], Any]]:
    """Removes the stream operators from `gm`; returns what the host does instead after each launch, in order."""
    calls: list[Callable[[], Any]] = []
    removed = False
    for node in reversed(list(gm.graph.nodes)):  # each may be waited for by later ones
        if _is_stream_operator(node):
            _take(node, calls)
            gm.graph.erase_node(node)
        elif node.op == "call_function" and getattr(node.target, "__name__", "") == "control_deps":
            _unwrap(gm, node, calls)
        else:
            continue
        removed = True
    if removed:
        gm.recompile()
    return calls[::-1]


def _is_stream_operator(node: Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and node.target.namespace == "streams"


def _take(node: Node, calls: list[Callable[[], Any]]) -> None:
    overload: Any = node.target
    if overload._schema.name.removeprefix("streams::") in _SEEN_BY_THE_HOST:
        calls.append(partial(overload, *node.args, **node.kwargs))


def _unwrap(gm: torch.fx.GraphModule, node: Node, calls: list[Callable[[], Any]]) -> None:
    """`control_deps(before, subgraph, *values)`: a stream operator, and the values that may be used only behind it."""
    subgraph: Any = node.args[1]
    values = node.args[2:]
    for inner in getattr(gm, subgraph.target).graph.nodes:
        if _is_stream_operator(inner):
            _take(inner, calls)
    for user in list(node.users):
        assert user.target is operator.getitem
        index: Any = user.args[1]
        if index > 0:  # the first is the stream operator's, which has none
            user.replace_all_uses_with(values[index - 1])
        gm.graph.erase_node(user)
    gm.graph.erase_node(node)
    if not subgraph.users:
        gm.graph.erase_node(subgraph)
