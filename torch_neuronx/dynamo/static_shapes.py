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
    inputs = []
    for node, value in zip(gm.graph.find_nodes(op="placeholder"), example_inputs, strict=True):
        # The tensor itself has sizes; whether they are open, Dynamo's fake tensor of it says.
        traced = node.meta.get("example_value")
        traced = traced if isinstance(traced, torch.Tensor) else value
        if not _is_symbolic(traced):
            inputs.append(value)
            continue
        marked = getattr(value, "_dynamo_dynamic_indices", None)
        if isinstance(traced, torch.Tensor) and (marked or not torch._dynamo.config.assume_static_by_default):
            raise RuntimeError(_refusal(node, traced, value, marked))
        inputs.append(_fixed(traced))
    return inputs


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


def _refusal(node: torch.fx.Node, traced: torch.Tensor, value: torch.Tensor, marked: set[int] | None) -> str:
    (dim, *_) = marked or [d for d, size in enumerate(traced.shape) if isinstance(size, torch.SymInt)] or [0]
    asked = "torch._dynamo.mark_dynamic" if marked else "dynamic=True"
    remedy = "Do not mark it" if marked else "Use dynamic=False"
    return (
        f'torch.compile(backend="neuron"): {asked} leaves dimension {dim} of {input_name(node)} (now '
        f"{value.shape[dim]}) open, but programs of a NeuronCore have static shapes. {remedy}: each shape is compiled "
        "once, and the compiled programs are kept on disk. Pad inputs to a few fixed sizes if there are many."
    )


def input_name(node: torch.fx.Node) -> str:
    """The Python expression that an input of Dynamo's graph came from, such as `L['x']`."""
    argument = node.meta.get("grapharg")
    source = getattr(argument, "source", None)
    name = getattr(source, "name", None)
    if callable(name):
        name = name()
    return name if isinstance(name, str) and name else node.name
