# SPDX-License-Identifier: Apache-2.0
"""A table of embeddings that is the output layer's weight as well has two gradients. The embedding's is zero but for
the rows that were looked up: those are added to the other, without a second tensor as large as the table."""

from __future__ import annotations

import copy
from typing import Any

import torch

from ..lowering.families.embedding import operators

aten = torch.ops.aten


def add_embedding_gradients(graph: torch.fx.Graph) -> None:
    """Rewrites `graph`, a joint graph of forward and backward, in place."""
    for node in graph.find_nodes(op="call_function", target=aten.embedding_dense_backward.default):
        if len(node.users) != 1:
            continue
        (total,) = node.users
        if total.target is not aten.add.Tensor or len(total.args) != 2 or total.kwargs:
            continue
        other: Any = total.args[1] if total.args[0] is node else total.args[0]
        if other is node or not isinstance(other, torch.fx.Node):
            continue
        dense, table = other.meta["val"], node.meta["val"]
        if (dense.shape, dense.dtype) != (table.shape, table.dtype):
            continue
        grad, indices, _, padding_idx, scale_grad_by_freq = node.args
        with graph.inserting_before(total):
            fused = graph.call_function(
                operators.add_embedding_gradient.default, (other, grad, indices, padding_idx, scale_grad_by_freq)
            )
        fused.meta = copy.copy(total.meta)
        total.replace_all_uses_with(fused)
        graph.erase_node(total)
        graph.erase_node(node)
