# SPDX-License-Identifier: Apache-2.0
"""Static shapes: programs have fixed sizes, so every size that Dynamo left open is fixed to what it is now."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch


def specialize(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> list[Any]:
    """The inputs with integers for sizes. Dynamo guards each one, so another size compiles another graph.

    Dynamo makes a size symbolic the second time it differs, unless `dynamic=False`. Asking a symbolic size for its
    value is what fixes it. Raises RuntimeError when the caller asked for dynamic shapes.
    """
    if not any(_is_symbolic(value) for value in example_inputs):
        return list(example_inputs)
    if not torch._dynamo.config.assume_static_by_default:
        raise RuntimeError(
            'torch.compile(backend="neuron", dynamic=True): programs of a NeuronCore have static shapes'
            + _varying(gm, example_inputs)
            + ". Use dynamic=False: each shape is compiled once, and the compiled programs are kept on disk. Pad "
            "inputs to a few fixed sizes if there are many."
        )
    return [_fixed(value) for value in example_inputs]


def _is_symbolic(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return any(isinstance(n, torch.SymInt) for n in (*value.shape, *value.stride(), value.storage_offset()))
    return isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool))


def _fixed(value: Any) -> Any:
    if not _is_symbolic(value):
        return value
    if isinstance(value, torch.SymInt):
        return int(value)
    if isinstance(value, torch.SymFloat):
        return float(value)
    if isinstance(value, torch.SymBool):
        return bool(value)
    sizes = [int(n) for n in value.shape]
    strides = [int(n) for n in value.stride()]
    offset = int(value.storage_offset())
    storage_elements = int(value.untyped_storage().nbytes()) // value.element_size()
    with value.fake_mode:
        memory = torch.empty(storage_elements, dtype=value.dtype, device=value.device)
        fixed = torch.as_strided(memory, sizes, strides, offset)
    if isinstance(value, torch.nn.Parameter):
        fixed = torch.nn.Parameter(fixed, value.requires_grad)
    return fixed.requires_grad_(value.requires_grad)


def _varying(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> str:
    """ "; dimension 0 of L['x'] is symbolic", for the first such input."""
    for node, value in zip(gm.graph.find_nodes(op="placeholder"), example_inputs, strict=False):
        if isinstance(value, torch.Tensor):
            for dim, size in enumerate(value.shape):
                if isinstance(size, torch.SymInt):
                    return f", but dimension {dim} of {input_name(node)} (now {size.node.hint}) was left open"
    return ""


def input_name(node: torch.fx.Node) -> str:
    """The Python expression that an input of Dynamo's graph came from, such as `L['x']`."""
    argument = node.meta.get("grapharg")
    source = getattr(argument, "source", None)
    name = getattr(source, "name", None)
    if callable(name):
        name = name()
    return name if isinstance(name, str) and name else node.name
