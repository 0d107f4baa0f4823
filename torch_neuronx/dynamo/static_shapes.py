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
    nodes = gm.graph.find_nodes(op="placeholder")
    # The tensor itself has sizes; whether they are open, Dynamo's fake tensor of it says.
    examples = [node.meta.get("example_value") for node in nodes]
    traced = [t if isinstance(t, torch.Tensor) else v for t, v in zip(examples, example_inputs, strict=True)]
    memories: dict[int, _Memory] = {}
    for node, fake, value in zip(nodes, traced, example_inputs, strict=True):
        if isinstance(fake, torch.Tensor) and _is_symbolic(fake):
            marked = getattr(value, "_dynamo_dynamic_indices", None)
            if marked or not torch._dynamo.config.assume_static_by_default:
                raise RuntimeError(_refusal(node, fake, value, marked))
            if _storage(value) not in memories:
                memories[_storage(value)] = _Memory(fake, int(value.untyped_storage().nbytes()))
    return [_fixed(fake, value, memories) for fake, value in zip(traced, example_inputs, strict=True)]


class _Memory:
    """Fake memory of a fixed size. AOTAutograd knows tensors that share memory by their storage and base."""

    def __init__(self, fake: Any, nbytes: int):
        self.fake_mode = fake.fake_mode
        with self.fake_mode:
            self._bytes = torch.empty(nbytes, dtype=torch.uint8, device=fake.device)
        self._typed: dict[torch.dtype, torch.Tensor] = {}

    def tensor(self, dtype: torch.dtype, sizes: list[int], strides: list[int], offset: int) -> torch.Tensor:
        with self.fake_mode:
            if dtype not in self._typed:
                elements = self._bytes.numel() // dtype.itemsize
                self._typed[dtype] = self._bytes[: elements * dtype.itemsize].view(dtype)
            return torch.as_strided(self._typed[dtype], sizes, strides, offset)


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


def _is_symbolic(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return any(isinstance(n, torch.SymInt) for n in (*value.shape, *value.stride(), value.storage_offset()))
    return isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool))


def _fixed(traced: Any, value: Any, memories: dict[int, _Memory]) -> Any:
    """`value` with integers. memories: by storage, for tensors with open sizes and for those that share theirs."""
    if isinstance(traced, torch.SymInt):
        return int(traced)
    if isinstance(traced, torch.SymFloat):
        return float(traced)
    if isinstance(traced, torch.SymBool):
        return bool(traced)
    if not isinstance(traced, torch.Tensor) or _storage(value) not in memories:
        return value
    sizes, strides = [int(n) for n in traced.shape], [int(n) for n in traced.stride()]
    # Where in its memory a tensor begins is no part of a program: asking the fake tensor would guard it.
    fixed = memories[_storage(value)].tensor(traced.dtype, sizes, strides, int(value.storage_offset()))
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
