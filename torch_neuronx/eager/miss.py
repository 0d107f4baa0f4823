# SPDX-License-Identifier: Apache-2.0
"""The miss handler: decides how an operator with new shapes is computed.

In this order: the index (another process has met the key before), a lowering rule, PyTorch's decomposition lowered as
one program, the CPU. Compilation goes on in the background: the caller needs the results' shapes only.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import torch

from ..compiler import current, device_program, program_index
from ..log import logger
from ..lowering import load_rules, lower
from ..lowering.meta import meta_of
from ..lowering.registry import DataDependentShape
from ..lowering.single_pointwise import lower_single
from ..lowering.view_operand import layout_of, read_view, to_memory_order, write_view
from ..stablehlo import Builder, Program, Value
from ..stablehlo.builder import Location
from ..stablehlo.types import ELEMENT_TYPES
from .length_class import join, padded
from .variants import Variant, qualified_name, resolve, variant_of

_log = logger(__name__)

_SCALAR_DTYPES = {"float32": torch.float32, "float64": torch.float64, "int64": torch.int64, "bool": torch.bool}

# Decision of the handler, as csrc/eager/miss.cc reads it: program id, results, layout of the returns,
# random numbers drawn. None: run on the CPU.
Decision = tuple[int | None, list[tuple | None], list[int], int]


class Operand(NamedTuple):
    """One operand of the launch.

    kind: window, delta or length of the window before, or the dtype of a scalar. element: its place within a list
        argument, or -1.
    """

    kind: str
    argument: int
    element: int
    window: int
    has_delta: bool
    mutated: bool


class Result(NamedTuple):
    """One tensor that the operator yields; target: index of the mutated tensor that takes it, or -1."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    target: int


def handle(
    name: str, arguments: tuple, operands: Sequence[tuple], key: bytes, where: str, lanes: int
) -> Decision | None:
    """Called by the extension for a key that this process has not met.

    name: qualified overload. arguments: one a schema argument; tensors of the device, CPU scalars, Python
    values. operands: see `Operand`. key: identifies everything the decision depends on. where: the Python line.
    lanes: > 0 if the program shall serve 1-D operands of every length: elements of its 1-D operands and results.
    Raises what PyTorch raises for arguments that do not fit.
    """
    index_key = name.encode() + b"\0" + key
    record = program_index().find(index_key)
    if record is not None:
        if record.get("fallback"):
            return None
        decision = _recall(record)
        if decision is not None:
            return decision
    overload = resolve(name)
    variant = variant_of(overload)
    with torch.no_grad():
        miss = None if variant is None else _Miss(variant, arguments, [Operand(*o) for o in operands], where, lanes)
        plan = None if miss is None else miss.plan()
    if plan is None:
        program_index().add(index_key, {"fallback": True})
        return None
    return _start(plan, index_key)


class _Plan(NamedTuple):
    description: str
    program: Program | None
    results: list[Result | None]
    returns: list[int]
    random_increment: int
    temporary: bool = False  # serves one call only (an out= argument is resized first)


def _start(plan: _Plan, index_key: bytes) -> Decision:
    """Hands the program to the compiler; remembers the decision once it has succeeded."""
    results = [None if r is None else tuple(r) for r in plan.results]
    if plan.program is None:
        if not plan.temporary:
            program_index().add(index_key, _record(plan, None))
        return None, results, plan.returns, 0
    program = device_program.start(
        plan.program,
        plan.description,
        device_program.estimate_us(plan.program, "eager"),
        lambda neff: program_index().add(index_key, _record(plan, neff.key)),
        kind="eager",
    )
    return program.number, results, plan.returns, plan.random_increment


def _record(plan: _Plan, neff_key: str | None) -> dict[str, Any]:
    results = [
        None if r is None else [r.sizes, r.strides, str(r.dtype).removeprefix("torch."), r.target] for r in plan.results
    ]
    return {
        "neff": neff_key,
        "description": plan.description,
        "results": results,
        "returns": plan.returns,
        "random": plan.random_increment,
        "estimate": device_program.estimate_us(plan.program, "eager") if plan.program else 0,
    }


def _recall(record: dict[str, Any]) -> Decision | None:
    """The decision of an earlier process; None when its NEFF is gone."""
    results = [None if r is None else (tuple(r[0]), tuple(r[1]), getattr(torch, r[2]), r[3]) for r in record["results"]]
    if record["neff"] is None:
        return None, results, record["returns"], 0
    program = device_program.recall(record["neff"], record["description"], record["estimate"], kind="eager")
    return None if program is None else (program.number, results, record["returns"], record["random"])


class _Miss:
    """One miss of one overload."""

    def __init__(self, variant: Variant, arguments: tuple, operands: list[Operand], where: str, lanes: int = 0):
        self.variant = variant
        self.arguments = tuple(padded(value, lanes) for value in arguments) if lanes else arguments
        self.lanes = lanes
        self.operands = operands
        self.where = where
        self.schema = variant.overload._schema
        self.name = qualified_name(variant.overload)

    # -- what PyTorch says ---------------------------------------------------------------

    def plan(self) -> _Plan | None:
        """None when the device cannot compute it."""
        functional = self.variant.functional
        in_table = functional in load_rules()
        graph = None
        metas = self._meta_arguments()
        if not in_table:
            from ..lowering.graph import decompose

            positional, keyword = self._call_arguments(functional, self._meta_arguments(as_tensors=True))
            graph = decompose(functional, positional, keyword)
            if graph is None:
                return None
        try:
            out, returns_lists = self._results(metas)
        except NotImplementedError as reason:
            # The result's shape depends on the data (a boolean mask), or the dtype suits no kernel: the
            # CPU computes it, or says what is wrong.
            _log.info("%s runs on the CPU: %s", self.name, reason)
            return None
        results, mismatched = self._describe_results(out)
        if self.variant.updated and self._is_marked():
            # The in-place overload knows what it refuses (a result that does not fit, say).
            positional, keyword = self._call_arguments(self.variant.overload, self._meta_arguments())
            self.variant.overload(*positional, **keyword)
        returns = self._fresh_returns(returns_lists)
        if mismatched:
            return _Plan(self._description(), None, results, returns, 0, temporary=True)
        if all(r is None or 0 in r.sizes for r in results):
            return _Plan(self._description(), None, results, returns, 0)
        try:
            program, increment = self._lower(out, results, graph)
        except (DataDependentShape, NotImplementedError) as reason:
            _log.info("%s runs on the CPU: %s", self.name, reason)
            return None
        return _Plan(self._description(), program, results, returns, increment)

    def _meta_arguments(self, as_tensors: bool = False) -> dict[str, Any]:
        """Arguments by name, on the meta device. as_tensors: numbers that stand for tensors become such."""
        metas = {}
        for argument, value in zip(self.schema.arguments, self.arguments, strict=True):
            if _is_device(argument):
                value = torch.device("meta")
            elif as_tensors and isinstance(value, (bool, int, float)) and "Tensor" in str(argument.type):
                value = torch.tensor(value, device="meta")
            metas[argument.name] = meta_of(value)
        return metas

    def _call_arguments(self, overload: torch._ops.OpOverload, values: dict[str, Any]) -> tuple[list, dict[str, Any]]:
        positional, keyword = [], {}
        for argument in overload._schema.arguments:
            if argument.kwarg_only:
                keyword[argument.name] = values[argument.name]
            else:
                positional.append(values[argument.name])
        return positional, keyword

    def _results(self, metas: dict[str, Any]) -> tuple[list[torch.Tensor | None], list[int]]:
        """Meta tensors of all results, lists flattened, and per return -1, the length n of its list, or -2 - n for the
        number n."""
        positional, keyword = self._call_arguments(self.variant.functional, metas)
        rule = load_rules().get(self.variant.functional)
        function = self.variant.functional if rule is None or rule.meta is None else rule.meta
        returned = function(*positional, **keyword)
        if not isinstance(returned, (tuple, list)) or len(self.variant.functional._schema.returns) == 1:
            returned = [returned] if self.variant.functional._schema.returns else []
        flat: list[torch.Tensor | None] = []
        lists: list[int] = []
        for value in returned:
            if isinstance(value, (list, tuple)):
                flat.extend(value)
                lists.append(len(value))
            elif isinstance(value, int):
                flat.append(None)
                lists.append(-2 - value)
            else:
                flat.append(value)
                lists.append(-1)
        if self.variant.updated and self.variant.functional is self.variant.overload:
            updated = [meta_of(target) for target in self._targets()]
            flat.extend(updated)
            lists.extend(-1 for _ in updated)
        return flat, lists

    def _is_marked(self) -> bool:
        return any(a.alias_info is not None and a.alias_info.is_write for a in self.schema.arguments)

    def _targets(self) -> list[torch.Tensor]:
        """The mutated tensors, in the order in which the extension numbers them."""
        names = self.variant.updated + self.variant.written
        found: list[torch.Tensor] = []
        for argument, value in zip(self.schema.arguments, self.arguments, strict=True):
            if argument.name in names:
                candidates = value if isinstance(value, list) else [value]
                found.extend(v for v in candidates if isinstance(v, torch.Tensor))
        return found

    def _describe_results(self, out: list[torch.Tensor | None]) -> tuple[list[Result | None], bool]:
        """The results' layouts; whether an out= argument has another shape than its result."""
        targets = self._targets()
        fresh = len(out) - len(targets)
        assert fresh >= 0, f"{self.name}: {len(out)} results for {len(targets)} mutated tensors"
        results: list[Result | None] = []
        mismatched = False
        for index, meta in enumerate(out):
            if meta is None:
                results.append(None)
            elif self.lanes:
                results.append(Result((self.lanes,), (1,), meta.dtype, -1))
            elif index < fresh:
                results.append(Result(tuple(meta.shape), _dense_strides(meta), meta.dtype, -1))
            else:
                target = targets[index - fresh]
                mismatched |= target.shape != meta.shape
                if self._is_marked() and not torch.can_cast(meta.dtype, target.dtype):
                    raise RuntimeError(
                        f"{self.name}: result type {meta.dtype} can't be cast to the desired output type {target.dtype}"
                    )
                results.append(Result(tuple(meta.shape), tuple(target.stride()), target.dtype, index - fresh))
        return results, mismatched

    def _fresh_returns(self, lists: list[int]) -> list[int]:
        count = sum(1 for r in self.schema.returns if r.alias_info is None)
        return lists[:count]

    # -- the program ------------------------------------------------------------------------

    def _lower(self, out: list[torch.Tensor | None], results: list[Result | None], graph: Any) -> tuple[Program, int]:
        target = current()
        b = Builder(target.kernels, target.software)
        b.location = Location(self.name, *_file_and_line(self.where))
        inputs = [b.input(*self._parameter(operand)) for operand in self.operands]
        metadata: dict[str, object] = {"operator": self.name, "line": self.where, "description": self._description()}
        kinds = [operand.kind for operand in self.operands]
        if "length" in kinds:
            parts = [(inputs[i], inputs[i + 1]) for i, kind in enumerate(kinds) if kind == "window"]
            return b.finish([join(b, parts, cast("Result", results[0]).dtype)], metadata), 0
        single = self._lower_single(b, inputs, results)
        if single is not None:
            return b.finish([single], metadata), 0
        values, windows = self._operand_values(b, inputs)
        functional = self.variant.functional
        if graph is None:
            names = [a.name for a in functional._schema.arguments]
            lowered = lower(b, functional, tuple(values[n] for n in names), {}, tuple(cast("list[torch.Tensor]", out)))
        else:
            from ..lowering.graph import lower_graph

            flat = [v for v in _flatten(values[a.name] for a in functional._schema.arguments) if isinstance(v, Value)]
            lowered = tuple(lower_graph(b, graph, flat))
        outputs: list[Value] = []
        for value, result in zip(lowered, results, strict=True):
            if result is None or 0 in result.sizes:
                continue
            assert value is not None, f"{self.name}: a result is missing"
            value = b.convert(value, result.dtype)
            window = windows.get(result.target) if result.target >= 0 else None
            if window is None:
                outputs.append(to_memory_order(b, value, result.strides))
                continue
            index, has_delta = window
            if has_delta:
                delta = inputs[index + 1]
                outputs.append(write_view(b, inputs[index], value, result.sizes, result.strides, delta))
            else:
                outputs.append(to_memory_order(b, value, result.strides))
            if outputs[-1].numel == inputs[index].numel and outputs[-1].dtype == inputs[index].dtype:
                b.alias(index, len(outputs) - 1)
        return b.finish(outputs, metadata), b.random_increment

    def _lower_single(self, b: Builder, inputs: list[Value], results: list[Result | None]) -> Value | None:
        """The only result, where it lies in memory as all operands do and a kernel computes it from these."""
        result = results[0] if len(results) == 1 else None
        if result is None or any(operand.has_delta for operand in self.operands):
            return None
        layout = layout_of(result.sizes, result.strides)
        if not layout.dense or layout.repeated:
            return None
        updated = None
        for index, operand in enumerate(self.operands):
            if operand.kind != "window":
                continue
            tensor = self._value_of(operand)
            if operand.mutated:
                updated = index
            if tensor.numel() != 1 and (
                tuple(tensor.shape) != result.sizes or layout_of(tensor.shape, tensor.stride()) != layout
            ):
                return None
        value = lower_single(b, self.variant.functional, inputs, math.prod(result.sizes), result.dtype, updated)
        if value is not None and updated is not None:
            b.alias(updated, 0)
        return value

    def _value_of(self, operand: Operand) -> Any:
        value = self.arguments[operand.argument]
        return value if operand.element < 0 else value[operand.element]

    def _parameter(self, operand: Operand) -> tuple[tuple[int, ...], torch.dtype]:
        if operand.kind == "window":
            return (operand.window,), self._value_of(operand).dtype
        return (), torch.int64 if operand.kind in ("delta", "length") else _SCALAR_DTYPES[operand.kind]

    def _operand_values(self, b: Builder, inputs: list[Value]) -> tuple[dict[str, Any], dict[int, tuple[int, bool]]]:
        """Arguments by name as the rule wants them; and of each mutated tensor that is read, its operand."""
        given: dict[tuple[int, int], Value] = {}
        windows: dict[int, tuple[int, bool]] = {}
        order = self._target_positions()
        for index, operand in enumerate(self.operands):
            place = (operand.argument, operand.element)
            if operand.kind == "delta":
                continue
            if operand.kind != "window":
                inputs[index].wrapped = True
                given[place] = inputs[index]
                continue
            tensor = self._value_of(operand)
            delta = inputs[index + 1] if operand.has_delta else None
            if operand.mutated:
                windows[order[place]] = (index, operand.has_delta)
            given[place] = read_view(b, inputs[index], tuple(tensor.shape), tuple(tensor.stride()), delta)
        values: dict[str, Any] = {}
        for position, (argument, value) in enumerate(zip(self.schema.arguments, self.arguments, strict=True)):
            if isinstance(value, list):
                values[argument.name] = [
                    self._rule_argument(b, given, position, element, v) for element, v in enumerate(value)
                ]
            else:
                values[argument.name] = self._rule_argument(b, given, position, -1, value)
        return values, windows

    def _target_positions(self) -> dict[tuple[int, int], int]:
        names = self.variant.updated + self.variant.written
        positions: dict[tuple[int, int], int] = {}
        for position, (argument, value) in enumerate(zip(self.schema.arguments, self.arguments, strict=True)):
            if argument.name not in names:
                continue
            for element, v in enumerate(value) if isinstance(value, list) else [(-1, value)]:
                if isinstance(v, torch.Tensor):
                    positions[position, element] = len(positions)
        return positions

    @staticmethod
    def _rule_argument(b: Builder, given: dict, position: int, element: int, value: Any) -> Any:
        operand = given.get((position, element))
        if operand is not None:
            return operand
        if isinstance(value, torch.Tensor):  # of no elements, or written only
            return b.constant(0, value.dtype, tuple(value.shape)) if value.numel() == 0 else None
        return value

    def _description(self) -> str:
        described = (_describe(v, self.lanes) for v in _flatten(self.arguments) if v is not None)
        return f"{self.name}({', '.join(described)})"


def _is_device(argument: Any) -> bool:
    return argument.name == "device" and "Device" in str(argument.type)


def _dense_strides(meta: torch.Tensor) -> tuple[int, ...]:
    """Strides of a new tensor: PyTorch's, unless they leave gaps or overlap."""
    strides = meta.stride()
    if meta.numel() == 0 or meta.is_contiguous():
        return strides
    expected = 1
    for stride, size in sorted((s, n) for s, n in zip(strides, meta.shape, strict=True) if n > 1):
        if stride != expected:
            return torch.empty(meta.shape, device="meta").stride()
        expected *= size
    return strides


def _flatten(values: Any) -> Any:
    for value in values:
        if isinstance(value, list):
            yield from value
        else:
            yield value


def _describe(value: Any, lanes: int) -> str:
    if isinstance(value, torch.Tensor):
        shape = f"..{lanes}" if lanes and value.ndim == 1 else ", ".join(map(str, value.shape))
        return f"{ELEMENT_TYPES.get(value.dtype, value.dtype)}[{shape}]"
    return str(value)


def _file_and_line(where: str) -> tuple[str, int]:
    match = re.match(r"(.*):(\d+) in ", where)
    return (match[1], int(match[2])) if match else ("", 0)
