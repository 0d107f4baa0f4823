# SPDX-License-Identifier: Apache-2.0
"""One graph of AOTAutograd: lowered, compiled on another thread, and launched when it is called."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

import torch
import torch._functorch.config
from torch._guards import CompileContext
from torch._inductor.output_code import OutputCode
from torch.compiler._cache import CacheArtifact
from torch.utils._python_dispatch import _disable_current_modes

from .. import _C, cache_artifacts, environment
from ..compiler import CompilationError, CompiledNeff, artifacts, device_program, program_index
from ..compiler.device_program import DeviceProgram
from ..eager.variants import qualified_name
from ..log import OncePer, logger
from ..lowering.graph import all_nodes, attribute_of, submodule_of
from ..lowering.registry import LoweringError
from ..stablehlo.program import TensorSpec
from . import statistics
from .donation import donated_inputs, undefined_outputs
from .errors import NEFFCompilationError
from .fingerprint import fingerprint
from .host_updates import function_of, is_cpu_number
from .origin import Origin, argument_names
from .out_collectives import make_functional
from .outline import Outline, outline_of
from .plan import Plan, from_record, to_record
from .program import InputLayout, layout_of_input, lower_to_program, tensor_of_layout
from .streams import take_stream_operators

_log = logger(__name__)
_copied_inputs = OncePer()
_rearranged = OncePer()

# Constants of a graph up to this size are part of the program; larger ones, and those on the device, are operands.
_LARGEST_CONSTANT = 1024


def compile_graph(
    gm: torch.fx.GraphModule, example_inputs: Sequence[Any], *, role: str, origin: Origin
) -> CompiledGraph:
    """Lowers `gm` and starts to compile it; the call waits for the result.

    gm: functional ATen operators, with `copy_` to the inputs that are written. role: "inference", "forward" or
    "backward". Raises LoweringError, with the operator and its line, for what has no StableHLO form, unless
    TORCH_NEURONX_DISABLE_FALLBACK_EXECUTION=0.
    """
    with _disable_current_modes():  # constants are real tensors
        return CompiledGraph(role, origin, gm)


def compile_traced(
    trace: Callable[[], torch.fx.GraphModule | None], key: bytes | None, *, role: str, origin: Origin
) -> CompiledGraph | None:
    """`compile_graph` of what `trace` returns, without calling it where the index knows the graph by `key`.

    key: identifies the graph before it is traced; None when nothing does. None: there is no such graph.
    """
    record = None if key is None or _keeps_artifacts() else program_index().find(key)
    if record is not None:
        recalled = CompiledGraph(role, origin, None, plan=from_record(record), trace=trace)
        if recalled.is_known:
            return recalled
    gm = trace()
    if gm is None:
        return None
    graph = compile_graph(gm, (), role=role, origin=origin)
    if key is not None:
        graph.remember(key)
    return graph


def _keeps_artifacts() -> bool:
    """What the index spares is the lowering, and that is what makes the text to be saved."""
    return environment.get("TORCH_NEURONX_PRESERVE_COMPILATION_ARTIFACTS")


class _Prepared(NamedTuple):
    """A program on its way (None: there is nothing to compute), and how the launch deals with it.
    record: what the index holds for `fingerprint`."""

    layouts: list[InputLayout]
    program: DeviceProgram | None
    random_increment: int
    fingerprint: bytes
    record: dict[str, Any]
    lowering_seconds: float = 0.0
    keep: Callable[[CompiledNeff], None] | None = None  # saves the graph and its program for people


class CompiledGraph(OutputCode):
    """Called with the list of the graph's inputs, which it empties; returns the list of its results.

    gm: the graph. Where it is None, `plan` says how to launch it, and `trace` makes it if it is needed after all.
    Where there is neither, inputs of another layout are copied into the one that the program knows.
    As an OutputCode it can be kept in AOTAutograd's cache: see serialized.py.
    """

    def __init__(
        self,
        role: str,
        origin: Origin,
        gm: torch.fx.GraphModule | None,
        *,
        plan: Plan | None = None,
        trace: Callable[[], torch.fx.GraphModule | None] | None = None,
    ):
        self._boxed_call = True  # of the instance: AOTAutograd copies it from there when it wraps the backward
        self._gm = gm
        self._trace = trace
        self.name = _name(role, origin)
        self.role = role
        self.origin = origin
        self.model_name = statistics.get_model_name()
        self._mutex = threading.Lock()
        self._failure: Exception | None = None  # set: the graph runs operator by operator
        self._pending: _Prepared | None = None
        self._remembered: tuple[bytes, dict[str, Any]] | None = None  # in the index, beside the program
        self._held_names: list[str] = []
        self._held: list[torch.Tensor] = []
        self._donated: list[int] = []
        self._stream_calls: list[Callable[[], Any]] = []
        self._first: _Prepared | None = None  # the program for the expected layouts
        if plan is not None:
            self._expected, self._donated, self._operators = plan.layouts, plan.donated, plan.operators
            self._names = [name for name, _ in origin.inputs]
            self._set_outline(plan.outline)
            self._pending = self._first = self._recall(plan.layouts, plan.fingerprint)
            return
        assert gm is not None
        self._stream_calls = take_stream_operators(gm)
        make_functional(gm)
        attributes = [node for node in gm.graph.find_nodes(op="get_attr") if submodule_of(node) is None]
        held = {node.target: attribute_of(node) for node in attributes}
        held = {name: tensor for name, tensor in held.items() if _is_operand(tensor)}
        self._held_names = list(held)
        self._held = [tensor.detach().to("neuron").contiguous() for tensor in held.values()]
        outline = outline_of(gm.graph)
        self._donated = donated_inputs(role, outline)
        inputs = [outline.placeholders[i] for i in outline.inputs]
        self._expected = [
            layout_of_input(node.meta["val"], index in outline.host_inputs) for index, node in enumerate(inputs)
        ]
        self._operators = _operators(gm.graph)
        self._names = argument_names(inputs, origin)
        self._set_outline(outline)
        try:
            self._pending = self._first = self._prepare(self._expected)
        except LoweringError as error:
            if environment.get("TORCH_NEURONX_DISABLE_FALLBACK_EXECUTION"):
                raise
            self._run_eagerly_because(error)

    def _set_outline(self, outline: Outline) -> None:
        self._outline = outline
        self._graph = _C.Graph(self.name, len(outline.inputs))
        self._plain = outline.inputs == list(range(outline.argument_count)) and not (
            outline.host_inputs
            or outline.host_returns
            or outline.values_returned
            or outline.host_updates
            or self._stream_calls
        )
        self._host_update = None if outline.host_updates is None else function_of(outline.host_updates)

    # -- the call ----------------------------------------------------------------------------

    def __call__(self, arguments: Any) -> list[Any]:
        try:
            if not self._plain:
                return self._call_with_host(arguments)
            results = self._graph(arguments)
            if results is None:
                results = self._call_first(arguments)
        except (CompilationError, LoweringError) as error:
            if error is not self._failure:
                self._compile_failed(error)
            results = self._run_eagerly(arguments)
            for call in self._stream_calls:
                call()
        arguments.clear()
        return results

    def _call_first(self, tensors: list[torch.Tensor]) -> list[Any]:
        """The call that no program suits yet. Raises CompilationError or LoweringError."""
        if self._failure is not None:
            raise self._failure.with_traceback(None)
        with self._mutex:
            if self._pending is not None:
                pending, self._pending = self._pending, None
                self._add(pending)
            results = self._graph(tensors)
            if results is not None:
                return results
            tensors = self._with_expected_strides(tensors)
            results = self._graph(tensors)
            if results is not None:
                return results
            if self._gm is None and self._trace is None:
                return self._call_rearranged(tensors)
            layouts = [
                layout_of_input(tensor, index in self._outline.host_inputs) for index, tensor in enumerate(tensors)
            ]
            _log.info("%s: other input layouts, another program: %s", self.name, _differences(self._expected, layouts))
            self._add(self._prepare(layouts))
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

    def _call_rearranged(self, tensors: list[torch.Tensor]) -> list[Any]:
        """With copies of the inputs whose layout no program knows."""
        copies = list(tensors)
        for index, (tensor, layout) in enumerate(zip(tensors, self._expected, strict=True)):
            if layout_of_input(tensor, index in self._outline.host_inputs) != layout:
                copies[index] = tensor_of_layout(layout, tensor.device).copy_(tensor)
        if _rearranged.first(self.name):
            changed = [name for name, a, b in zip(self._names, copies, tensors, strict=True) if a is not b]
            _log.warning(
                "%s was loaded without its graph, and its program expects other strides of %s: they are copied at "
                "every call. torch.compile without the loaded file makes a program of their own",
                self.name,
                ", ".join(changed),
            )
        results = self._graph(copies)
        if results is None:
            raise RuntimeError(f"{self.name}: no program suits its inputs; this is a bug of torch_neuronx")
        for output in self._outline.outputs:
            if output.target >= 0 and copies[output.target] is not tensors[output.target]:
                tensors[output.target].copy_(copies[output.target])
        return results

    def _call_with_host(self, arguments: list[Any]) -> list[Any]:
        """A graph with inputs or results on the CPU, or that are no tensors, or with something for the host to do."""
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
        if self._host_update is not None and outline.host_updates is not None:
            with torch.no_grad():
                updates = self._host_update(*numbers)
                for index, value in zip(outline.host_updates.inputs, updates, strict=True):
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
        for call in self._stream_calls:
            call()
        arguments.clear()
        return results

    def _copy_to_device(self, tensors: list[torch.Tensor]) -> None:
        names = [self._names[i] for i in self._outline.host_inputs]
        if environment.get("TORCH_NEURONX_DYNAMO_DISABLE_CPU_AUTOCOPY"):
            shapes = ", ".join(
                f"{n} {list(tensors[i].shape)}" for n, i in zip(names, self._outline.host_inputs, strict=True)
            )
            raise RuntimeError(
                f"{self.name}: inputs on the CPU ({shapes}), and TORCH_NEURONX_DYNAMO_DISABLE_CPU_AUTOCOPY=1 forbids "
                'to copy them; move them with .to("neuron") before the call'
            )
        inputs = f"{', '.join(names)} of {self.name}"
        if _copied_inputs.first(inputs):
            _log.warning(
                "a compiled graph has inputs on the CPU (%s): they are copied to the device at every call; move them "
                'once with .to("neuron")',
                inputs,
            )
        for index in self._outline.host_inputs:
            tensors[index] = tensors[index].to("neuron")

    # -- the program -------------------------------------------------------------------------

    @property
    def gm(self) -> torch.fx.GraphModule:
        """The graph, traced now if nothing has needed it before."""
        if self._gm is None:
            assert self._trace is not None
            with _disable_current_modes():
                gm = self._trace()
            assert gm is not None  # what the index knows has been traced before
            self._gm, self._trace = gm, None
            self._outline = outline_of(gm.graph)
        return self._gm

    @property
    def is_known(self) -> bool:
        """Whether there is a program for the expected layouts, or one on its way."""
        return self._first is not None

    @property
    def is_compiled(self) -> bool:
        """Whether the program for the expected layouts is there by now."""
        return self._first is not None and (self._first.program is None or _succeeded(self._first.program.neff))

    @property
    def input_names(self) -> list[str]:
        """Of the graph's tensors, as the function calls them."""
        return self._names

    def remember(self, key: bytes) -> None:
        """Lets the index find the graph by `key`, before it is traced."""
        record = self.plan_record()
        if record is not None:
            program_index().add(key, record)
            self._remembered = (key, record)

    def plan_record(self) -> dict[str, Any] | None:
        """How to launch the graph without tracing it; None when that takes more than a record can hold."""
        if self._first is None or self._held or self._stream_calls:
            return None
        plan = Plan(self._outline, self._expected, self._donated, self._operators, self._first.fingerprint)
        return to_record(plan)

    def artifact(self) -> CacheArtifact | None:
        """The program for the layouts of `plan_record`, to be taken elsewhere. Waits until it is compiled; raises
        CompilationError. None: there is no program."""
        if self._first is None:
            return None
        neff = self._first.program.neff.result() if self._first.program else None
        return self._artifact_of(self._first, neff)

    def _artifact_of(self, prepared: _Prepared, neff: CompiledNeff | None) -> cache_artifacts.NeuronGraphArtifact:
        return cache_artifacts.artifact_of(prepared.fingerprint, prepared.record, neff, self._remembered)

    def _prepare(self, layouts: list[InputLayout]) -> _Prepared:
        """Finds the program in the index, or lowers it and hands it to the compiler."""
        undefined = undefined_outputs(self._donated, layouts)
        key = fingerprint(self.gm.graph, layouts, self._held, undefined)
        keep = _keeps_artifacts()
        recalled = None if keep else self._recall(layouts, key)
        if recalled is not None:
            return recalled
        started = time.perf_counter()
        metadata: dict[str, Any] = {
            "operator": self.name,
            "model": self.model_name,
            "function": self.origin.function,
            "line": self.origin.line,
            "kind": "graph",
            "role": self.role,
            "operators": self._operators,
            "arguments": [[name, _describe(layout)] for name, layout in zip(self._names, layouts, strict=True)],
        }
        readable = self._readable() if keep else ""
        record: dict[str, Any]
        program, increment = lower_to_program(
            self.gm, self._outline, layouts, self._held, self._held_names, metadata, undefined
        )
        lowering_seconds = time.perf_counter() - started
        if program is None:
            record = {"neff": None}
            program_index().add(key, record)
            return _Prepared(layouts, None, 0, key, record, lowering_seconds)
        estimate = device_program.estimate_us(program, "graph")
        record = {"neff": "", "description": self.name, "random": increment, "estimate": estimate}

        def compiled(neff: CompiledNeff) -> None:
            record["neff"] = neff.key
            program_index().add(key, record)

        def save(neff: CompiledNeff) -> None:
            artifacts.save(program, neff.key, metadata, {"graph.txt": readable.encode(), "program.neff": neff.data})

        started_program = device_program.start(program, self.name, record["estimate"], compiled, kind="graph")
        return _Prepared(layouts, started_program, increment, key, record, lowering_seconds, save if keep else None)

    def _recall(self, layouts: list[InputLayout], key: bytes) -> _Prepared | None:
        record = program_index().find(key)
        if record is None:
            return None
        if record["neff"] is None:
            return _Prepared(layouts, None, 0, key, record)
        program = device_program.recall(record["neff"], self.name, record["estimate"], kind="graph")
        return None if program is None else _Prepared(layouts, program, record["random"], key, record)

    def _add(self, prepared: _Prepared) -> None:
        """Waits for the program. Raises CompilationError."""
        started = time.perf_counter()
        neff = prepared.program.neff.result() if prepared.program else None
        statistics.record_graph(self, neff, prepared.lowering_seconds, time.perf_counter() - started)
        if prepared.keep is not None and neff is not None:
            prepared.keep(neff)
        cache_artifacts.record(self._artifact_of(prepared, neff))
        returns = [None if r is None else tuple(r) for r in self._outline.returns]
        outputs = [output.describe() for output in self._outline.outputs]
        for index in undefined_outputs(self._donated, prepared.layouts):
            layout = prepared.layouts[index]
            outputs.append((layout.sizes, layout.strides, layout.dtype, index))
        self._graph.add(
            prepared.program.number if prepared.program else 0,
            [tuple(layout) for layout in prepared.layouts],
            outputs,
            returns,
            self._held,
            prepared.random_increment,
            self._operators,
            self._outline.is_awaited,
        )

    # -- as an OutputCode --------------------------------------------------------------------

    def prepare_for_serialization(self) -> None:
        pass

    def post_compile(self, *_: Any) -> None:
        """Called when it was loaded. Raises SerializedGraphError."""
        from . import serialized

        serialized.check(self)

    def set_triton_bundle(self, triton_bundle: Any) -> None:
        pass

    def __copy__(self) -> CompiledGraph:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> CompiledGraph:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        from . import serialized

        # Set where a function is compiled ahead of time, to be taken elsewhere.
        complete = torch._functorch.config.bypass_autograd_cache_key
        return serialized.restore, (serialized.dump(self, complete=complete),)

    # -- failures ----------------------------------------------------------------------------

    def _compile_failed(self, error: CompilationError | LoweringError) -> None:
        """Raises it, unless the graph may run eagerly. A failure is not kept: the next call tries again."""
        if isinstance(error, CompilationError) and error.program_path is not None:
            artifacts.add(error.program_path, {"graph.txt": self._readable().encode()})
        if not environment.get("TORCH_NEURONX_DISABLE_FALLBACK_EXECUTION"):
            self._run_eagerly_because(error)
        elif isinstance(error, CompilationError):
            raise NEFFCompilationError(str(error), error.reason, error.program_path) from error
        else:
            raise error

    def _readable(self) -> str:
        """The FX graph, for people."""
        return self.gm.print_readable(print_output=False, include_stride=True)

    def _run_eagerly_because(self, error: Exception) -> None:
        _log.warning("%s did not compile and runs operator by operator: %s", self.name, error)
        self._failure = error

    def _run_eagerly(self, arguments: list[Any]) -> list[Any]:
        with torch.no_grad(), torch._C._DisableAutocast():
            return list(torch.fx.Interpreter(self.gm).run(*arguments))


def _succeeded(neff: Future[CompiledNeff]) -> bool:
    return neff.done() and neff.exception() is None


def _is_operand(constant: torch.Tensor) -> bool:
    """Whether a tensor that the graph holds is handed over at the launch. One without elements has no memory."""
    return constant.numel() > 0 and (constant.device.type != "cpu" or constant.numel() > _LARGEST_CONSTANT)


def _name(role: str, origin: Origin) -> str:
    compile_id = CompileContext.current_compile_id()
    name = f"graph {compile_id} ({role})" if compile_id is not None else f"graph ({role})"
    return f"{name} of {origin.function}" if origin.function else name


def _operators(graph: torch.fx.Graph) -> list[str]:
    """Names of the graph's operators, as the operator log shows them."""
    targets = [node.target for node in all_nodes(graph) if isinstance(node.target, torch._ops.OpOverload)]
    return list(dict.fromkeys(qualified_name(target) for target in targets))


def _describe(layout: InputLayout) -> str:
    text = str(TensorSpec(layout.sizes, layout.dtype))
    if layout.scalar:
        return text + " on the CPU"
    if layout.strides != torch.empty(layout.sizes, device="meta").stride():
        text += f" with strides {list(layout.strides)}"
    return text + (" in a larger tensor" if layout.has_delta else "")


def _differences(before: Sequence[InputLayout], now: Sequence[InputLayout]) -> str:
    changed = [f"input {i}: {a} became {b}" for i, (a, b) in enumerate(zip(before, now, strict=True)) if a != b]
    return "; ".join(changed)
