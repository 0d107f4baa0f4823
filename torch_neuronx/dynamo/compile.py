# SPDX-License-Identifier: Apache-2.0
"""One graph of AOTAutograd: lowered, compiled on another thread, and launched when it is called."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

import torch
from torch._guards import CompileContext
from torch.utils._python_dispatch import _disable_current_modes

from .. import _C, environment
from ..compiler import CompilationError, CompiledNeff, load, program_index, submit, workers
from ..log import logger
from ..lowering.graph import attribute_of
from ..stablehlo import Program
from . import statistics
from .errors import NEFFCompilationError
from .fingerprint import fingerprint
from .outline import host_update_function, is_cpu_number, outline_of
from .program import InputLayout, layout_of_input, lower_to_program

_log = logger(__name__)

# Constants of a graph up to this size are part of the program; larger ones, and those on the device, are operands.
_LARGEST_CONSTANT = 1024


def compile_graph(gm: torch.fx.GraphModule, example_inputs: Sequence[Any], *, role: str) -> CompiledGraph:
    """Lowers `gm` and starts to compile it; the call waits for the result.

    gm: functional ATen operators, with `copy_` to the inputs that are written. role: "inference", "forward" or
    "backward". Raises LoweringError, with the operator and its line, for what has no StableHLO form.
    """
    with _disable_current_modes():  # constants are real tensors
        return CompiledGraph(gm, role)


class _Prepared(NamedTuple):
    """A program on its way, and how the launch deals with it."""

    layouts: list[InputLayout]
    program_id: int
    future: Future[None]
    random_increment: int


class CompiledGraph:
    """Called with the list of the graph's inputs, which it empties; returns the list of its results."""

    def __init__(self, gm: torch.fx.GraphModule, role: str):
        self._boxed_call = True  # of the instance: AOTAutograd copies it from there when it wraps the backward
        self.gm = gm
        self.name = _name(role)
        self.role = role
        self._model_name = statistics.get_model_name()
        self._outline = outline_of(gm.graph)
        held = {node.target: attribute_of(node) for node in gm.graph.find_nodes(op="get_attr")}
        held = {name: t for name, t in held.items() if t.device.type != "cpu" or t.numel() > _LARGEST_CONSTANT}
        self._held_names = list(held)
        self._held = [tensor.detach().to("neuron").contiguous() for tensor in held.values()]
        self._graph = _C.Graph(self.name, len(self._outline.inputs))
        self._all_tensors = self._outline.inputs == list(range(len(self._outline.placeholders)))
        self._plain = self._all_tensors and not (
            self._outline.host_inputs
            or self._outline.host_returns
            or self._outline.values_returned
            or self._outline.host_updates
        )
        self._host_update = host_update_function(self._outline)
        self._mutex = threading.Lock()
        self._eager = False
        expected = [self._outline.placeholders[i].meta["val"] for i in self._outline.inputs]
        self._expected = [
            layout_of_input(tensor, index in self._outline.host_inputs) for index, tensor in enumerate(expected)
        ]
        self._pending: _Prepared | None = self._prepare(self._expected)

    # -- the call ----------------------------------------------------------------------------

    def __call__(self, arguments: list[Any]) -> list[Any]:
        if self._plain:
            results = self._graph(arguments)
            if results is None:
                results = self._call_first(arguments)
            arguments.clear()
            return results
        return self._call_with_host(arguments)

    def _call_first(self, tensors: list[torch.Tensor]) -> list[Any]:
        """The call that no program suits yet."""
        if self._eager:
            return self._run_eagerly(tensors)
        with self._mutex:
            if self._pending is not None:
                pending, self._pending = self._pending, None
                try:
                    self._add(pending)
                except CompilationError as error:
                    return self._compile_failed(error, tensors)
            results = self._graph(tensors)
            if results is not None:
                return results
            tensors = self._with_expected_strides(tensors)
            results = self._graph(tensors)
            if results is not None:
                return results
            layouts = [
                layout_of_input(tensor, index in self._outline.host_inputs) for index, tensor in enumerate(tensors)
            ]
            _log.info("%s: other input layouts, another program: %s", self.name, _differences(self._expected, layouts))
            try:
                self._add(self._prepare(layouts))
            except CompilationError as error:
                return self._compile_failed(error, tensors)
            results = self._graph(tensors)
        if results is None:
            raise RuntimeError(f"{self.name}: no program suits its inputs {layouts}; this is a bug of torch_neuronx")
        return results

    def _with_expected_strides(self, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        """Views of these inputs are returned, with strides that the trace has fixed."""
        result = list(tensors)
        for index in self._outline.fixed_inputs:
            layout, tensor = self._expected[index], tensors[index]
            if tuple(tensor.stride()) != layout.strides:
                result[index] = torch.empty_strided(
                    layout.sizes, layout.strides, dtype=layout.dtype, device=tensor.device
                ).copy_(tensor)
        return result

    def _call_with_host(self, arguments: list[Any]) -> list[Any]:
        """A graph with inputs or results on the CPU, or that are no tensors."""
        outline = self._outline
        tensors = [arguments[i] for i in outline.inputs]
        numbers = [tensor for tensor in tensors if is_cpu_number(tensor)]
        originals = {index: tensors[index] for index in outline.host_inputs}
        if originals:
            self._copy_to_device(tensors)
        results = self._graph(tensors)
        if results is None:
            results = self._call_first(tensors)
        for output in outline.outputs:
            if output.target in originals:
                originals[output.target].copy_(tensors[output.target])
        if self._host_update is not None:
            with torch.no_grad():
                updates = self._host_update(*numbers)
                for index, value in zip(outline.host_updates, updates, strict=True):
                    tensors[index].copy_(value)
        if not environment.get("TORCH_NEURONX_RETAIN_DEVICE_MODE"):
            for position in outline.host_returns:
                described = outline.returns[position]
                assert described is not None
                if described.source == "input" and described.sizes is None and described.number in originals:
                    results[position] = originals[described.number]
                else:
                    results[position] = results[position].cpu()
        for position, value in outline.values_returned.items():
            results[position] = value
        arguments.clear()
        return results

    def _copy_to_device(self, tensors: list[torch.Tensor]) -> None:
        names = [self._outline.placeholders[self._outline.inputs[i]].name for i in self._outline.host_inputs]
        if environment.get("TORCH_NEURONX_DYNAMO_DISABLE_CPU_AUTOCOPY"):
            shapes = ", ".join(
                f"{n} {list(tensors[i].shape)}" for n, i in zip(names, self._outline.host_inputs, strict=True)
            )
            raise RuntimeError(
                f"{self.name}: inputs on the CPU ({shapes}), and TORCH_NEURONX_DYNAMO_DISABLE_CPU_AUTOCOPY=1 forbids "
                'to copy them; move them with .to("neuron") before the call'
            )
        statistics.warn_once(
            f"a compiled graph has inputs on the CPU ({', '.join(names)} of {self.name}): they are copied to the "
            'device at every call; move them once with .to("neuron")'
        )
        for index in self._outline.host_inputs:
            tensors[index] = tensors[index].to("neuron")

    # -- the program -------------------------------------------------------------------------

    def _prepare(self, layouts: list[InputLayout]) -> _Prepared:
        """Finds the program in the index, or lowers it and hands it to the compiler."""
        key = fingerprint(self.gm.graph, layouts, self._held)
        record = program_index().find(key)
        if record is not None:
            recalled = self._recall(layouts, record)
            if recalled is not None:
                statistics.count("graphs_from_index")
                return recalled
        started = time.perf_counter()
        description = f"{self.name} of {len(layouts)} inputs"
        metadata: dict[str, object] = {
            "operator": self._model_name + " " + self.name if self._model_name else self.name,
            "description": description,
            "kind": "graph",
            "role": self.role,
            "operators": _operators(self.gm.graph),
            "arguments": [_describe(layout) for layout in layouts],
        }
        program, increment = lower_to_program(self.gm, self._outline, layouts, self._held, self._held_names, metadata)
        statistics.record_lowering(time.perf_counter() - started)
        statistics.count("graphs_lowered")
        done: Future[None] = Future()
        if program is None:
            program_index().add(key, {"neff": None})
            done.set_result(None)
            return _Prepared(layouts, 0, done, 0)
        estimate = _estimate_us(program)
        program_id = _C.new_program(description, estimate)
        device = _C.current_device()

        def compiled(future: Future[CompiledNeff]) -> None:
            error = future.exception()
            if error is not None:
                _C.program_failed(program_id, str(error) or repr(error))
                done.set_exception(error)
                return
            neff = future.result()
            _C.program_ready(program_id, neff.data)
            _C.preload_program(program_id, device)
            program_index().add(
                key, {"neff": neff.key, "description": description, "random": increment, "estimate": estimate}
            )
            statistics.note_neff(neff)
            done.set_result(None)

        submit(program, kind="graph").add_done_callback(compiled)
        return _Prepared(layouts, program_id, done, increment)

    def _recall(self, layouts: list[InputLayout], record: dict[str, Any]) -> _Prepared | None:
        done: Future[None] = Future()
        if record["neff"] is None:
            done.set_result(None)
            return _Prepared(layouts, 0, done, 0)
        neff = load(record["neff"])
        if neff is None:
            return None
        program_id = _C.new_program(record["description"], record["estimate"])
        device = _C.current_device()
        statistics.note_neff(neff)

        def load_model() -> None:
            _C.program_ready(program_id, neff.data)
            _C.preload_program(program_id, device)
            done.set_result(None)

        def abandon() -> None:
            _C.program_failed(program_id, "the process ends")
            done.set_exception(CompilationError("the process ended before the program was loaded"))

        workers.submit(workers.Job(load_model, abandon))
        return _Prepared(layouts, program_id, done, record["random"])

    def _add(self, prepared: _Prepared) -> None:
        """Waits for the program. Raises CompilationError."""
        started = time.perf_counter()
        prepared.future.result()
        statistics.record_wait(self, time.perf_counter() - started)
        returns = [None if r is None else tuple(r) for r in self._outline.returns]
        self._graph.add(
            prepared.program_id,
            [tuple(layout) for layout in prepared.layouts],
            [output.describe() for output in self._outline.outputs],
            returns,
            self._held,
            prepared.random_increment,
            _operators(self.gm.graph),
        )

    # -- failures ----------------------------------------------------------------------------

    def _compile_failed(self, error: CompilationError, tensors: list[torch.Tensor]) -> list[Any]:
        if environment.get("TORCH_NEURONX_DISABLE_FALLBACK_EXECUTION"):
            raise NEFFCompilationError(str(error), error.reason, error.program_path) from error
        _log.warning("%s did not compile and runs operator by operator: %s", self.name, error)
        self._eager = True
        return self._run_eagerly(tensors)

    def _run_eagerly(self, tensors: list[torch.Tensor]) -> list[Any]:
        values: list[Any] = [node.meta.get("val") for node in self._outline.placeholders]
        for position, tensor in zip(self._outline.inputs, tensors, strict=True):
            values[position] = tensor
        with torch.no_grad():
            return list(torch.fx.Interpreter(self.gm).run(*values))


def _name(role: str) -> str:
    compile_id = CompileContext.current_compile_id()
    return f"graph {compile_id} ({role})" if compile_id is not None else f"graph ({role})"


def _operators(graph: torch.fx.Graph) -> list[str]:
    """Names of the graph's operators, as the operator log shows them."""
    found: dict[str, None] = {}
    for node in graph.nodes:
        if node.op == "call_function" and isinstance(node.target, torch._ops.OpOverload):
            name = node.target.name()
            found[name.removesuffix(".default")] = None
    return list(found)


def _describe(layout: InputLayout) -> str:
    dtype = str(layout.dtype).removeprefix("torch.")
    return f"{dtype}{list(layout.sizes)}"


def _differences(before: Sequence[InputLayout], now: Sequence[InputLayout]) -> str:
    changed = [f"input {i}: {a} became {b}" for i, (a, b) in enumerate(zip(before, now, strict=True)) if a != b]
    return "; ".join(changed)


def _estimate_us(program: Program) -> float:
    """A first guess of the run time; the extension measures from then on. A graph is worth waking a thread for."""
    touched = sum(math.prod(spec.shape) * spec.dtype.itemsize for spec in (*program.inputs, *program.outputs))
    return 50 + touched / 8e3
