# SPDX-License-Identifier: Apache-2.0
"""Finds cross entropy in a training graph: log_softmax, nll_loss and their gradients become two operators."""

from __future__ import annotations

import copy
import operator
from typing import Any

import torch
from torch._guards import detect_fake_mode

from ..lowering.families.cross_entropy import operators

aten = torch.ops.aten
Node = torch.fx.Node

_SAME_VALUE = (aten.detach.default, aten.alias.default)
_RESHAPES = (aten.view.default, aten._unsafe_view.default)
_HALF = (torch.bfloat16, torch.float16)


def fuse_cross_entropy(graph: torch.fx.Graph) -> None:
    """Rewrites `graph`, a joint graph of forward and backward, in place. The logarithms of the probabilities stay
    where something else reads them."""
    for node in graph.find_nodes(op="call_function", target=aten._log_softmax.default):
        _fuse(graph, node)
    graph.eliminate_dead_code()


def _fuse(graph: torch.fx.Graph, log_softmax: Node) -> None:
    logits, dim = log_softmax.args[0], log_softmax.args[1]
    value = log_softmax.meta["val"]
    if value.dim() != 2 or dim not in (1, -1) or value.numel() == 0 or value.dtype in _HALF:
        return
    readers = _readers(log_softmax)
    if sorted(str(node.target) for node in readers) != _PIECES:
        return
    by_target = {node.target: node for node in readers}
    nll = by_target[aten.nll_loss_forward.default]
    nll_backward = by_target[aten.nll_loss_backward.default]
    backward = by_target[aten._log_softmax_backward_data.default]
    if backward.args[0] is not nll_backward or len(nll_backward.users) > 1:
        return
    grad, _, target, weight, reduction, ignore_index, _ = nll_backward.args
    with graph.inserting_before(nll):
        source = _before_widening(graph, logits)
        forward = _call(graph, operators.cross_entropy.default, (source, *nll.args[1:]), nll)
        items = [_call(graph, operator.getitem, (forward, i), nll) for i in range(4)]
    for reader in list(nll.users):
        reader.replace_all_uses_with(items[reader.args[1]])  # type: ignore[index]
    _, total_weight, largest, log_total = items
    with graph.inserting_before(backward):
        dtype = backward.meta["val"].dtype
        arguments = (grad, source, largest, log_total, target, weight, reduction, ignore_index, total_weight, dtype)
        fused = _call(graph, operators.cross_entropy_backward.default, arguments, backward)
    backward.replace_all_uses_with(fused)
    _round_at_once(fused)


def _round_at_once(gradient: Node) -> None:
    """Lets the gradient be computed in the half type to which it is rounded next, behind reshapes."""
    node, chain = gradient, [gradient]
    while len(node.users) == 1 and (node := next(iter(node.users))).target in _RESHAPES:
        chain.append(node)
    if node.target is not aten._to_copy.default or len(chain[-1].users) > 1:
        return
    before, after = node.args[0].meta["val"], node.meta["val"]  # type: ignore[union-attr]
    dtype = after.dtype
    if before.dtype != torch.float32 or dtype not in _HALF or before.device != after.device:
        return
    gradient.args = (*gradient.args[:-1], dtype)
    for earlier in chain:
        earlier.meta["val"] = earlier.meta["val"].to(dtype)
    node.replace_all_uses_with(chain[-1])


# What reads the logarithms of probabilities in the graph of a cross entropy.
_PIECES = sorted(
    map(str, (aten.nll_loss_forward.default, aten.nll_loss_backward.default, aten._log_softmax_backward_data.default))
)


def _readers(node: Node) -> list[Node]:
    found: list[Node] = []
    for user in node.users:
        found += _readers(user) if user.target in _SAME_VALUE else [user]
    return found


def _before_widening(graph: torch.fx.Graph, logits: Any) -> Node:
    """The half-type logits that were widened for the loss, which computes in float32 in any case."""
    reshapes: list[Node] = []
    node = logits
    while node.target in _RESHAPES:
        reshapes.append(node)
        node = node.args[0]
    if node.target is not aten._to_copy.default or set(node.kwargs) != {"dtype"}:
        return logits
    source = node.args[0]
    if source.meta["val"].dtype not in _HALF or node.meta["val"].dtype != torch.float32:
        return logits
    for reshape in reversed(reshapes):
        source = _call(graph, aten.view.default, (source, reshape.args[1]), reshape)
    return source


def _call(graph: torch.fx.Graph, target: Any, arguments: tuple[Any, ...], model: Node) -> Node:
    """A node that stands for `model`, or for a part of it."""
    node = graph.call_function(target, arguments)
    node.meta = copy.copy(model.meta)
    values = torch.fx.map_arg(arguments, lambda n: n.meta["val"])
    mode = detect_fake_mode(torch.utils._pytree.tree_leaves(values))
    assert mode is not None
    with mode:
        node.meta["val"] = target(*values)
    node.meta.pop("tensor_meta", None)
    return node
