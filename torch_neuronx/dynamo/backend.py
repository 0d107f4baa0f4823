# SPDX-License-Identifier: Apache-2.0
"""The backend: checks what torch.compile was asked for, and runs AOTAutograd over Dynamo's graph."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._dynamo.backends.common import aot_autograd
from torch._functorch._aot_autograd.schemas import SerializableAOTDispatchCompiler

from ..log import OncePer, logger
from ..lowering import load_rules
from . import inference, recompiles
from .collection import collection_paused
from .compile import CompiledGraph, compile_graph, compile_traced
from .compile_callbacks import ask_for_callbacks
from .fingerprint import fingerprint_of_calls
from .origin import Origin, origin_of, with_attributes
from .partition import partition
from .serialized import InferenceFunction, autograd_cache, record_for_dynamo
from .slices import slice_before_linear
from .static_shapes import specialize

_log = logger(__name__)
_ignored_modes = OncePer()


def neuron(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: dict[str, Any] | None = None,
) -> Callable[..., Any]:
    """Compiles one graph of Dynamo; what `torch.compile(backend="neuron")` calls.

    gm: the graph, before autograd and decompositions. example_inputs: fake tensors of its inputs.
    mode: only the default exists; others are ignored with one warning. options: none exist.
    Raises RuntimeError for dynamic shapes (`dynamic=True`) and unknown options. Returns a function of the
    graph's inputs.
    """
    if mode not in (None, "default") and _ignored_modes.first(mode):
        _log.warning('torch.compile(backend="neuron") has one mode; mode=%r is ignored', mode)
    if options:
        raise RuntimeError(
            f'torch.compile(backend="neuron"): unknown options {sorted(options)}; this backend has none. Compiler '
            "flags go into the environment variable NEURON_CC_FLAGS"
        )
    ask_for_callbacks()
    static_inputs = specialize(gm, example_inputs)
    slice_before_linear(gm)
    origin = origin_of(gm, static_inputs)
    recompiles.note(origin)
    with collection_paused():
        function = _compile_traced(gm, static_inputs, origin) if inference.is_traceable(gm, static_inputs) else None
        if function is not None:
            record_for_dynamo(gm, function)
            return function
        with autograd_cache(gm) as keep:
            return _aot(origin, keep)(gm, static_inputs)


def _compile_traced(gm: torch.fx.GraphModule, inputs: list[Any], origin: Origin) -> InferenceFunction | None:
    table = decompositions()
    attributes = inference.attributes_of(gm)
    origin = with_attributes(origin, attributes)
    inputs = [*inputs, *attributes.values()]
    trace = inference.tracer(gm, inputs, table)
    key = fingerprint_of_calls(gm.graph, inputs, list(attributes), table)
    graph = compile_traced(trace, key, role="inference", origin=origin)
    return None if graph is None else InferenceFunction(graph, list(attributes.values()))


def _aot(origin: Origin, keep: bool) -> Callable[..., Any]:
    """keep: whether AOTAutograd may look into its cache, and add to it."""

    def compiler(role: str) -> Callable[..., Any]:
        function = functools.partial(compile_graph, role=role, origin=origin)
        return SerializableAOTDispatchCompiler(CompiledGraph, function) if keep else function

    return aot_autograd(
        fw_compiler=compiler("forward"),
        bw_compiler=compiler("backward"),
        inference_compiler=compiler("inference"),
        partition_fn=partition,
        decompositions=decompositions(),
        keep_inference_input_mutations=True,
    )


@functools.cache
def decompositions() -> dict[Any, Callable[..., Any]]:
    """What AOTAutograd takes apart: the operators that the lowering table lacks, as far as PyTorch knows how."""
    from torch._decomp import decomposition_table

    from ..lowering.foreach import foreach_decompositions

    table = load_rules()
    chosen: dict[Any, Callable[..., Any]] = {**foreach_decompositions()}
    chosen |= {overload: rule for overload, rule in decomposition_table.items() if overload not in table}
    # Writes its statistics, though its schema does not say so; PyTorch has a functional form of it.
    batch_norm = torch.ops.aten.native_batch_norm.default
    chosen[batch_norm] = decomposition_table[batch_norm]
    return chosen
