# SPDX-License-Identifier: Apache-2.0
"""What identifies a graph in the index: everything that its program depends on, and no more.

Names of nodes, source lines, the index of the device and the order of dictionaries are left out, so every rank,
machine and run finds the same record.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import torch

from ..lowering.graph import attribute_of, submodule_of
from .outline import is_collective
from .program import InputLayout


def fingerprint(
    graph: torch.fx.Graph, layouts: Sequence[InputLayout], held: Sequence[torch.Tensor], undefined: Sequence[int] = ()
) -> bytes:
    """held: the graph's constants that are operands; the others are part of the program, with their values.
    undefined: inputs that the program leaves undefined."""
    lines = [repr(tuple(_plain(v) for v in layout)) for layout in layouts]
    lines += [f"held {_of_tensor(tensor)}" for tensor in held]
    lines += [f"undefined {index}" for index in undefined]
    lines += _of_nodes(graph)
    return b"graph\0" + hashlib.sha256("\n".join(lines).encode()).digest()


def _of_nodes(graph: torch.fx.Graph) -> list[str]:
    lines: list[str] = []
    numbers: dict[torch.fx.Node, int] = {}
    for node in graph.nodes:
        numbers[node] = len(numbers)
        if node.op == "get_attr" and (module := submodule_of(node)) is not None:
            lines += ["{", *_of_nodes(module.graph), "}"]
            continue
        target = str(node.target) if node.op == "call_function" else ""
        if node.op == "get_attr":
            target = _of_attribute(node)
        arguments = _plain((_without_group_name(node), node.kwargs), numbers)
        lines.append(f"{node.op} {target} {arguments} {_of_value(node.meta.get('val'))}")
    return lines


def _without_group_name(node: torch.fx.Node) -> Sequence[Any]:
    """The arguments; a collective's last one, a name that differs between ranks, as its program has it."""
    if not is_collective(node) or not node.target._schema.arguments[-1].name.startswith("group"):  # type: ignore[union-attr]
        return node.args
    from ..distributed.groups import group_of

    return (*node.args[:-1], repr(group_of(node.args[-1])))


def _plain(value: Any, numbers: dict[torch.fx.Node, int] | None = None) -> str:
    """`value` in words that are the same in every process."""
    if isinstance(value, torch.fx.Node):
        assert numbers is not None
        return f"%{numbers[value]}"
    if isinstance(value, (tuple, list)):
        return "(" + ",".join(_plain(v, numbers) for v in value) + ")"
    if isinstance(value, dict):
        return "{" + ",".join(f"{k}:{_plain(v, numbers)}" for k, v in sorted(value.items())) + "}"
    if isinstance(value, torch.device):
        return value.type
    if isinstance(value, slice):
        return f"slice({_plain((value.start, value.stop, value.step), numbers)})"
    return f"{type(value).__name__} {value!r}"


def _of_tensor(tensor: torch.Tensor) -> str:
    return f"{tensor.dtype}{list(tensor.shape)}{list(tensor.stride())}"


def _of_value(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return _of_tensor(value) + value.device.type
    if isinstance(value, (tuple, list)):
        return "(" + ",".join(_of_value(v) for v in value) + ")"
    return ""


def _of_attribute(node: torch.fx.Node) -> str:
    tensor = attribute_of(node)
    text = _of_tensor(tensor)
    if tensor.device.type == "cpu":
        data = tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""
        text += hashlib.sha256(data).hexdigest()
    return text
