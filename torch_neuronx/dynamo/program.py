# SPDX-License-Identifier: Apache-2.0
"""A graph as a program, for one set of input layouts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from .. import _C
from ..compiler import current
from ..lowering import load_rules
from ..lowering.families.convolution import gains_from_channels_last
from ..lowering.graph import lower_graph
from ..lowering.view_operand import memory_permutation, read_view, to_memory_order, write_view
from ..stablehlo import Builder, Program, Value
from .outline import Outline

# How the number in a 0-dim CPU tensor is handed over: see csrc/graph/graph.cc.
_SCALARS = {torch.bool: torch.bool, torch.float64: torch.float64}


class InputLayout(NamedTuple):
    """One input of the graph, as csrc/graph/graph.h describes it.

    scalar: a 0-dim CPU tensor, whose value is an operand. window: elements of the memory that is handed over.
    has_delta: where the tensor begins in it is another operand.
    """

    dtype: torch.dtype
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    scalar: bool
    window: int
    has_delta: bool

    @property
    def is_whole(self) -> bool:
        """Whether the tensor fills the memory that is handed over, each element once."""
        return (
            not self.scalar
            and not self.has_delta
            and self.window == math.prod(self.sizes)
            and memory_permutation(self.sizes, self.strides) is not None
        )


class _Operand(NamedTuple):
    """The parameters of one input: number of the first, the memory, where the tensor begins in it, and the order of
    the tensor's dimensions in the memory's shape (None: the memory is one dimension)."""

    number: int
    window: Value
    delta: Value | None
    permutation: tuple[int, ...] | None


def layout_of_input(tensor: torch.Tensor, on_device: bool) -> InputLayout:
    """Of a real tensor, or a fake one. on_device: a CPU tensor is described as the device tensor it will become."""
    sizes, strides = tuple(tensor.shape), tuple(tensor.stride())
    if on_device and tensor.device.type == "cpu":
        return InputLayout(
            tensor.dtype, sizes, torch.empty(sizes, device="meta").stride(), False, tensor.numel(), False
        )
    return InputLayout(tensor.dtype, sizes, strides, *_C.view_operand(tensor))


def tensor_of_layout(layout: InputLayout, device: torch.device) -> torch.Tensor:
    """An uninitialized tensor of this layout."""
    extent = 1 + sum((n - 1) * stride for n, stride in zip(layout.sizes, layout.strides, strict=True))
    # An odd offset is what makes an operand of where the tensor begins.
    for offset in (0, 1):
        memory = torch.empty(max(layout.window, extent + offset, 0), dtype=layout.dtype, device=device)
        tensor = memory.as_strided(layout.sizes, layout.strides, offset)
        if layout_of_input(tensor, True) == layout:
            return tensor
    raise RuntimeError(f"no tensor is like {layout}; this is a bug of torch_neuronx")


def lower_to_program(
    graph: torch.fx.GraphModule,
    outline: Outline,
    layouts: Sequence[InputLayout],
    constants: Sequence[torch.Tensor],
    constant_names: Sequence[str],
    metadata: dict[str, object],
    undefined: Sequence[int] = (),
) -> tuple[Program | None, int]:
    """The program, and how far a launch moves the random generator. None: there is nothing to compute.

    constants: tensors that the graph holds (attributes `constant_names`), handed over behind the inputs.
    undefined: inputs, layouts of which are whole, that hold anything afterwards; each is a further result.
    Raises LoweringError for what has no StableHLO form.
    """
    load_rules()
    target = current()
    b = Builder(target.kernels, target.software)
    operands: list[_Operand | None] = []
    for layout in layouts:
        if not layout.scalar and layout.window == 0:
            operands.append(None)
            continue
        number = b.parameter_count
        if layout.scalar:
            operands.append(_Operand(number, b.input((), _scalar_dtype(layout.dtype)), None, None))
            continue
        # A dense tensor has its own shape in the program, in the order of its memory: a reshape between the
        # parameter and an update in place would make the compiler copy first.
        permutation = None if layout.has_delta else memory_permutation(layout.sizes, layout.strides)
        shape = (layout.window,) if permutation is None else [layout.sizes[d] for d in permutation]
        window = b.input(shape, layout.dtype)
        delta = b.input((), torch.int64) if layout.has_delta else None
        operands.append(_Operand(number, window, delta, permutation))
    held = [b.input((tensor.numel(),), tensor.dtype) for tensor in constants]

    values: list[Any] = [node.meta.get("val") for node in outline.placeholders]
    for position, layout, operand in zip(outline.inputs, layouts, operands, strict=True):
        values[position] = _read(b, layout, operand)
    attributes = {
        name: b.reshape(value, tensor.shape)
        for name, value, tensor in zip(constant_names, held, constants, strict=True)
    }
    b.rounds_between = False
    b.channels_last = gains_from_channels_last(graph.graph, target.kernels)
    emitted = [output for output in outline.outputs if math.prod(output.sizes) > 0]
    lowered = lower_graph(b, graph, values, wanted=[output.node for output in emitted], attributes=attributes)
    results: list[Value] = []
    for output, value in zip(emitted, lowered, strict=True):
        assert value is not None
        operand = operands[output.target] if output.target >= 0 else None
        if operand is None:
            results.append(_in_memory_order(b, value, output.strides))
            continue
        strides = layouts[output.target].strides
        if operand.permutation is not None:
            value = b.transpose(value, operand.permutation)
        elif operand.delta is not None:
            value = write_view(b, operand.window, value, output.sizes, strides, operand.delta)
        else:
            value = to_memory_order(b, value, strides)
        results.append(value)
        if value.numel == operand.window.numel and value.dtype == operand.window.dtype:
            b.alias(operand.number, len(results) - 1)
    if not results and b.collective_token is None:
        return None, 0
    if undefined:
        numbers = [operand.number for i in undefined if (operand := operands[i]) is not None]
        windows = [(operand.window.shape, operand.window.dtype) for i in undefined if (operand := operands[i])]
        # After all results: what reads the memory has run by then.
        places = b.custom_call("neuroncore.undefined", results, windows)
        for number, place in zip(numbers, places, strict=True):
            b.alias(number, len(results))
            results.append(place)
    return b.finish(results, metadata), b.random_increment


def _scalar_dtype(dtype: torch.dtype) -> torch.dtype:
    return _SCALARS.get(dtype, torch.float32 if dtype.is_floating_point else torch.int64)


def _read(b: Builder, layout: InputLayout, operand: _Operand | None) -> Value:
    if operand is None:
        return b.constant(0, layout.dtype, layout.sizes)
    if layout.scalar:
        return b.convert(operand.window, layout.dtype)
    if operand.permutation is not None:
        return b.transpose(operand.window, [operand.permutation.index(d) for d in range(len(layout.sizes))])
    return read_view(b, operand.window, layout.sizes, layout.strides, operand.delta)


def _in_memory_order(b: Builder, value: Value, strides: Sequence[int]) -> Value:
    permutation = memory_permutation(value.shape, strides)
    return to_memory_order(b, value, strides) if permutation is None else b.transpose(value, permutation)
