# SPDX-License-Identifier: Apache-2.0
"""Dynamo's graph as functional ATen operators, where no gradients flow: one trace.

AOTAutograd runs a graph twice, in Python, to learn what it writes, returns and differentiates. A graph without
gradients that takes plain tensors and returns nothing of its inputs leaves only the writes, which PyTorch's
functionalization knows as it goes. Everything else is AOTAutograd's. Parameters and buffers that the graph holds
(those of an optimizer) are inputs too.
"""

from __future__ import annotations

import contextlib
import functools
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch._guards import detect_fake_mode
from torch._subclasses import FakeTensor

from ..lowering.registry import rule_of
from .calls import assemble

aten = torch.ops.aten
Node = torch.fx.Node

# `copy_` says what an input becomes.
_WITHOUT_RULE = (operator.getitem, aten.copy_.default)

_PLAIN = (torch.Tensor, torch.nn.Parameter, FakeTensor)

# Modules of functions that change what surrounds the trace: levels of torch.func.
_OF_TRANSFORMS = ("torch._functorch", "torch._C._functorch")


def is_traceable(gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> bool:
    """Whether `trace` understands Dynamo's graph. inputs: what Dynamo hands to a backend."""
    held = attributes_of(gm)
    inputs = [*inputs, *held.values()]
    if not all(type(value) in _PLAIN and value.layout == torch.strided for value in inputs):
        return False
    needs_gradients = any(value.requires_grad for value in inputs)
    if needs_gradients and torch.is_grad_enabled():
        return False
    return all(
        node.target in held if node.op == "get_attr" else _is_understood(node, needs_gradients)
        for node in gm.graph.nodes
    ) and not _returns_inputs(gm.graph)


def attributes_of(gm: torch.fx.GraphModule) -> dict[str, torch.Tensor]:
    """The parameters and buffers that the graph reads, by name, in order."""
    held = {**dict(gm.named_parameters(remove_duplicate=False)), **dict(gm.named_buffers(remove_duplicate=False))}
    names = dict.fromkeys(str(node.target) for node in gm.graph.find_nodes(op="get_attr"))
    return {name: held[name] for name in names if name in held}


def _is_understood(node: Node, needs_gradients: bool) -> bool:
    if node.op == "call_method":
        return not _changes_layout(str(node.target))
    if node.op != "call_function":
        return node.op in ("placeholder", "output")
    target: Any = node.target
    if isinstance(target, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
        name = target._qualified_op_name if isinstance(target, torch._ops.OpOverloadPacket) else target.name()
        return name.startswith(("aten::", "prims::")) and not _changes_layout(name.partition("::")[2].partition(".")[0])
    if isinstance(target, torch._ops.HigherOrderOperator):
        return False
    if target is torch._C._set_grad_enabled and needs_gradients:
        return False
    module = getattr(target, "__module__", None) or ""
    return not module.startswith(_OF_TRANSFORMS) and not _changes_layout(getattr(target, "__name__", ""))


def _changes_layout(name: str) -> bool:
    """Whether it gives its operand another shape, or other memory: t_, resize_, set_ …"""
    if not name.endswith("_") or name.endswith("__"):
        return False
    packet = getattr(aten, name, None)
    if packet is None:
        return True
    return any(torch.Tag.inplace_view in getattr(packet, overload).tags for overload in packet.overloads())


def _returns_inputs(graph: torch.fx.Graph) -> bool:
    """Whether a result is an input or a view of one, or nothing that Dynamo has described."""
    taken = [*graph.find_nodes(op="placeholder"), *graph.find_nodes(op="get_attr")]
    memories = {_memory(node.meta.get("example_value")) for node in taken}
    returned: list[Any] = []
    torch.fx.map_arg(graph.output_node().args[0], returned.append)
    memories.add(None)
    return any(_memory(node.meta.get("example_value")) in memories for node in returned)


def _memory(value: Any) -> int | None:
    return value.untyped_storage()._cdata if type(value) in _PLAIN else None


def tracer(
    gm: torch.fx.GraphModule, inputs: Sequence[torch.Tensor], decompositions: dict[Any, Callable[..., Any]]
) -> Callable[[], torch.fx.GraphModule | None]:
    """`trace`, of fake tensors like `inputs` in the mode that Dynamo made for the backend. They are made when it is
    called, which it is not where the index knows the graph: an optimizer holds hundreds."""
    mode = detect_fake_mode(inputs)
    assert mode is not None
    return lambda: trace(gm, [mode.from_tensor(tensor, static_shapes=True) for tensor in inputs], decompositions)


def trace(
    gm: torch.fx.GraphModule, inputs: Sequence[torch.Tensor], decompositions: dict[Any, Callable[..., Any]]
) -> torch.fx.GraphModule | None:
    """The graph in functional ATen operators, and `copy_` into the inputs that are written.

    inputs: fake tensors, of the graph's inputs and then of its attributes. None: the graph does something with its
    inputs that a functional graph does not show, or has an operator that the lowering table lacks.
    """
    # What is made of other operators for every device, the dispatcher takes apart, as it does for AOTAutograd.
    table = {op: rule for op, rule in decompositions.items() if not _is_composite(op)}
    count = len(gm.graph.find_nodes(op="placeholder"))
    positions = {name: count + index for index, name in enumerate(attributes_of(gm))}
    once = functools.partial(_trace_once, table)
    traced = assemble(gm, inputs, once, positions)
    if traced is None or not _is_functional(traced.graph):
        traced = once(_Interpreter(gm, positions).trace, inputs)
    if traced is not None:
        traced.graph.eliminate_dead_code()
    return traced


def _trace_once(
    table: dict[Any, Callable[..., Any]], function: Callable[..., Any], inputs: Sequence[torch.Tensor]
) -> torch.fx.GraphModule | None:
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.fx.traceback import preserve_node_meta

    before = [_layout(tensor) for tensor in inputs]
    functional = torch.func.functionalize(function, remove="mutations")
    with preserve_node_meta(), _random_state_kept():
        traced = make_fx(functional, decomposition_table=table, tracing_mode="fake")(*inputs)
    if [_layout(tensor) for tensor in inputs] != before or not _is_functional(traced.graph):
        return None
    return traced if all(_is_lowered(node) for node in traced.graph.nodes) else None


class _Interpreter(torch.fx.Interpreter):
    """Takes the graph's attributes as further arguments, numbers of which are `positions`."""

    def __init__(self, gm: torch.fx.GraphModule, positions: dict[str, int]):
        super().__init__(gm)
        self._positions = positions
        self._arguments: tuple[Any, ...] = ()

    def trace(self, *arguments: Any) -> Any:
        self._arguments = arguments
        return self.run(*arguments[: len(arguments) - len(self._positions)])

    def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:
        return self._arguments[self._positions[target]]


def _is_composite(op: Any) -> bool:
    return isinstance(op, torch._ops.OpOverload) and op.has_kernel_for_dispatch_key(
        torch._C.DispatchKey.CompositeImplicitAutograd
    )


def _is_lowered(node: Node) -> bool:
    target: Any = node.target
    return node.op != "call_function" or target in _WITHOUT_RULE or rule_of(target) is not None


def _layout(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.shape, tensor.stride(), tensor.storage_offset(), tensor.untyped_storage()._cdata


def _is_functional(graph: torch.fx.Graph) -> bool:
    """Whether nothing is written but whole inputs, each once and none that shares its memory with another one."""
    placeholders = graph.find_nodes(op="placeholder")
    owners: dict[int | None, int] = {}
    for node in placeholders:
        memory = _memory(node.meta.get("val"))
        owners[memory] = owners.get(memory, 0) + 1
    free = {node for node in placeholders if owners[_memory(node.meta.get("val"))] == 1}
    for node in graph.nodes:
        if node.target is aten.native_batch_norm.default and node.args[5]:
            return False  # writes its statistics, though its schema does not say so
        if not isinstance(node.target, torch._ops.OpOverload) or not node.target._schema.is_mutable:
            continue
        if node.target is not aten.copy_.default or node.args[0] not in free or node.users:
            return False
        free.remove(node.args[0])
    return True


@contextlib.contextmanager
def _random_state_kept() -> Iterator[None]:
    state = torch.random.get_rng_state()
    try:
        yield
    finally:
        torch.random.set_rng_state(state)
