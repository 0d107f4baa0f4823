# SPDX-License-Identifier: Apache-2.0
"""Slices that are taken before a linear layer instead of after it."""

from __future__ import annotations

import operator
from typing import Any

import torch

Node = torch.fx.Node

_LINEAR = (torch._C._nn.linear, torch.nn.functional.linear)


def slice_before_linear(gm: torch.fx.GraphModule) -> None:
    """Rewrites a graph of Dynamo in place: where only some rows of a linear layer's result are read, only
    those are computed. A language model drops its last position that way, which costs a copy of all logits."""
    graph, changed = gm.graph, False
    for node in graph.nodes:
        if node.op != "call_function" or node.target not in _LINEAR or len(node.users) != 1 or not node.args:
            continue
        (user,) = node.users
        rows: Any = node.args[0]
        if user.target is operator.getitem and user.args[0] is node and _slices_rows(user.args[1], rows):
            with graph.inserting_before(node):
                taken = graph.call_function(operator.getitem, (rows, user.args[1]))
            taken.meta = {key: value for key, value in user.meta.items() if key != "example_value"}
            node.args = (taken, *node.args[1:])
            node.meta["example_value"] = user.meta["example_value"]
            user.replace_all_uses_with(node)
            graph.erase_node(user)
            changed = True
    if changed:
        gm.recompile()


def _slices_rows(index: Any, rows: Any) -> bool:
    """Whether `index` consists of slices of other dimensions than the last."""
    if not isinstance(rows, Node) or not isinstance(rows.meta.get("example_value"), torch.Tensor):
        return False
    index = index if isinstance(index, tuple) else (index,)
    return len(index) < rows.meta["example_value"].dim() and all(
        isinstance(part, slice) and all(n is None or isinstance(n, int) for n in (part.start, part.stop, part.step))
        for part in index
    )
