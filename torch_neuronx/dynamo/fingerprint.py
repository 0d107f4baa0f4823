# SPDX-License-Identifier: Apache-2.0
"""What identifies a graph in the index: everything that its program depends on, and no more.

Names of nodes, source lines, the index of the device and the order of dictionaries are left out, so every rank,
machine and run finds the same record.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from ..lowering.graph import attribute_of, submodule_of
from .outline import is_collective
from .program import InputLayout, layout_of_input


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


# -- before the trace ----------------------------------------------------------------------------

# Packages whose functions do the same wherever PyTorch has the same version, which is part of the index's.
_KNOWN_PACKAGES = frozenset({"torch", "_operator", "math", "builtins"})

_CONSTANTS = (type(None), type(...), bool, int, float, complex, str, torch.dtype, torch.memory_format, torch.layout)


class _Unknown(Exception):
    """Something that has no name which is the same in every process."""


def fingerprint_of_calls(
    graph: torch.fx.Graph,
    inputs: Sequence[torch.Tensor],
    attributes: Sequence[str],
    decompositions: Mapping[Any, Callable[..., Any]],
) -> bytes | None:
    """Of Dynamo's graph, whose nodes are Python functions and methods of tensors, and of what its trace depends on.

    inputs: what Dynamo hands to a backend, and behind them the tensors that the graph holds, names of which are
    `attributes`. None when something in the graph cannot be identified.
    """
    memories: dict[int, int] = {}
    lines = [_state(), decompositions_fingerprint(decompositions)]
    for tensor in inputs:
        memory = memories.setdefault(tensor.untyped_storage()._cdata, len(memories))
        lines.append(f"{tensor.device.type} {_of_tensor(tensor)} {memory} {tensor.requires_grad}")
        lines.append(f"{tensor.is_conj()} {tensor.is_neg()}")
        if tensor.device.type == "neuron":
            lines.append(repr(tuple(_plain(v) for v in layout_of_input(tensor, False))))
    numbers: dict[torch.fx.Node, int] = {}
    positions = {name: index for index, name in enumerate(attributes)}
    try:
        for node in graph.nodes:
            numbers[node] = len(numbers)
            name = str(positions[str(node.target)]) if node.op == "get_attr" else _name(node)
            lines.append(f"{node.op} {name} {_identified((node.args, node.kwargs), numbers)}")
    except _Unknown:
        return None
    return b"calls\0" + hashlib.sha256("\n".join(lines).encode()).digest()


def _name(node: torch.fx.Node) -> str:
    target: Any = node.target
    if node.op == "call_method":
        return target
    if node.op in ("placeholder", "output"):
        return ""
    if node.op != "call_function":
        raise _Unknown
    if isinstance(target, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
        return str(target)
    module = getattr(target, "__module__", None)
    name = getattr(target, "__qualname__", None) or getattr(target, "__name__", None)
    if module is None:  # functions of PyTorch's extension: Dynamo takes them from these places
        module = next((m.__name__ for m in _EXTENSION_MODULES if getattr(m, str(name), None) is target), None)
    if module is None or name is None or "<" in name or module.partition(".")[0] not in _KNOWN_PACKAGES:
        raise _Unknown
    return f"{module}.{name}"


_EXTENSION_MODULES = (torch, torch._C._nn, torch._C, torch._C._VariableFunctions)


def _identified(value: Any, numbers: dict[torch.fx.Node, int]) -> str:
    """`_plain`, of what is known to be identified by it. Raises _Unknown."""
    if isinstance(value, torch.fx.Node):
        return f"%{numbers[value]}"
    if isinstance(value, (tuple, list)):
        return "(" + ",".join(_identified(v, numbers) for v in value) + ")"
    if isinstance(value, dict):
        return "{" + ",".join(f"{k}:{_identified(v, numbers)}" for k, v in sorted(value.items())) + "}"
    if isinstance(value, slice):
        return f"slice({_identified((value.start, value.stop, value.step), numbers)})"
    if isinstance(value, (torch.device, *_CONSTANTS)):
        return _plain(value)
    raise _Unknown


def _state() -> str:
    """The settings of PyTorch that decide which operators its functions call."""
    return repr(
        (
            torch.get_default_dtype(),
            [(d, torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in ("neuron", "cpu")],
            torch.is_grad_enabled(),
            torch.are_deterministic_algorithms_enabled(),
            torch.get_float32_matmul_precision(),
            torch.backends.opt_einsum.enabled,
            torch.backends.opt_einsum.strategy,
            torch.backends.cuda.flash_sdp_enabled(),
            torch.backends.cuda.mem_efficient_sdp_enabled(),
            torch.backends.cuda.math_sdp_enabled(),
        )
    )


def decompositions_fingerprint(table: Mapping[Any, Callable[..., Any]]) -> str:
    """Of the operators that are taken apart, and of the code that does it where it is not PyTorch's or ours."""
    lines = []
    for overload, rule in table.items():
        module = getattr(rule, "__module__", None) or ""
        line = f"{overload} {module}.{getattr(rule, '__qualname__', '')}"
        if module.partition(".")[0] not in ("torch", "torch_neuronx"):
            code = getattr(rule, "__code__", None)
            line += repr(rule) if code is None else f" {code.co_code.hex()} {code.co_consts} {code.co_names}"
        lines.append(line)
    return hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()
