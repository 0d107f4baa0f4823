# SPDX-License-Identifier: Apache-2.0
"""Dynamo's graph without gradients as functional ATen operators, where equal calls are traced once.

The layers of a model make the same calls over and over, and Dynamo says what each takes and returns. So one trace
takes every different call, on tensors of its own, and the graph is put together from copies of its operators. What
is written is the tensor's value from then on; where that does not say it all, because something else shows the
same memory, the graph is left to a trace of the whole.
"""

from __future__ import annotations

import contextlib
import functools
import operator
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch._guards import detect_fake_mode
from torch._subclasses import FakeTensor
from torch.fx._lazy_graph_module import _make_graph_module, _use_lazy_graph_module

from ..lowering.foreach import element_function

aten = torch.ops.aten
Node = torch.fx.Node

_PLAIN = (torch.Tensor, torch.nn.Parameter, FakeTensor)
_CONSTANTS = (type(None), type(...), bool, int, str, torch.dtype, torch.device, torch.memory_format, torch.layout)
_DEVICES = ("neuron", "cpu")


class _NotUnderstood(Exception):
    """Something in the graph that copies of single calls do not show."""


class _Tensor:
    """A tensor of Dynamo's graph. fake: Dynamo's, which says its layout and its memory. value: what it holds, as a
    node of the new graph; None before it is there, and after something else has written into its memory."""

    __slots__ = ("fake", "is_input", "layout", "memory", "value")

    def __init__(self, fake: Any, is_input: bool = False):
        if type(fake) not in _PLAIN or fake.layout != torch.strided or fake.is_conj() or fake.is_neg():
            raise _NotUnderstood
        self.fake, self.is_input = fake, is_input
        self.layout = (fake.dtype, tuple(fake.shape), tuple(fake.stride()), fake.storage_offset())
        if not all(type(n) is int for n in (*self.layout[1], *self.layout[2], self.layout[3])):
            raise _NotUnderstood
        self.memory = fake.untyped_storage()._cdata
        self.value: Node | None = None

    def key(self) -> Hashable:
        return (*self.layout, self.fake.device, self.fake.requires_grad, self.fake.untyped_storage().nbytes())


class _Equal(NamedTuple):
    """Calls that do the same. function, arguments: one of them, with the tensors that it takes, each once.
    mode: grad mode and autocast that it runs under."""

    function: Callable[..., Any]
    arguments: Any
    tensors: list[_Tensor]
    mode: tuple[Any, ...]


class _Call(NamedTuple):
    """number: of the calls that do the same. node: of Dynamo's graph. results: flat. written: the tensor that the
    result goes into."""

    number: int
    node: Node
    tensors: list[_Tensor]
    results: list[_Tensor | None]
    written: _Tensor | None = None


class _Operators(NamedTuple):
    """What a call is in ATen operators: of the trace, in order. writes: by number of the tensor, what it becomes."""

    placeholders: list[Node]
    nodes: list[Node]
    results: list[Node | None]
    writes: dict[int, Node]


def assemble(
    gm: torch.fx.GraphModule,
    inputs: Sequence[torch.Tensor],
    trace: Callable[[Callable[..., Any], Sequence[torch.Tensor]], torch.fx.GraphModule | None],
    attributes: dict[str, int],
) -> torch.fx.GraphModule | None:
    """The graph in functional ATen operators, and `copy_` into the inputs that are written; None: see above.

    inputs: fake tensors, of the placeholders and behind them of the attributes, positions of which are `attributes`.
    trace: of a function on fake tensors; None when it does more than a functional graph shows.
    """
    try:
        graph = _Dynamo(gm, inputs, attributes)
        with _modes_kept():
            graph.read()
        everything = graph.everything()
        traced = trace(everything, graph.examples(inputs))
        return None if traced is None else graph.write(traced)
    except _NotUnderstood:
        return None


class _Dynamo:
    def __init__(self, gm: torch.fx.GraphModule, inputs: Sequence[torch.Tensor], attributes: dict[str, int]):
        self._graph, self._inputs, self._attributes = gm.graph, inputs, attributes
        self._values: dict[Node, Any] = {}  # of _Tensors and constants
        self._arguments: list[_Tensor | None] = [None] * len(inputs)
        self._calls: list[_Call] = []
        self._equal: list[_Equal] = []
        self._numbers: dict[Hashable, int] = {}

    # -- Dynamo's graph ----------------------------------------------------------------------

    def read(self) -> None:
        position = 0
        for node in self._graph.nodes:
            if node.op == "placeholder":
                self._values[node] = self._input(node, position)
                position += 1
            elif node.op == "get_attr":
                self._values[node] = self._input(node, self._attributes[str(node.target)])
            elif node.op in ("call_function", "call_method"):
                args, kwargs = self._of_nodes((node.args, node.kwargs))
                self._values[node] = self._read_call(node, args, kwargs)

    def _input(self, node: Node, position: int) -> _Tensor:
        tensor = self._arguments[position]
        if tensor is None:
            tensor = self._arguments[position] = _Tensor(node.meta.get("example_value"), is_input=True)
            if tensor.layout != _Tensor(self._inputs[position]).layout:
                raise _NotUnderstood
        return tensor

    def _of_nodes(self, value: Any) -> Any:
        return _mapped(value, lambda leaf: self._values[leaf] if isinstance(leaf, Node) else leaf)

    def _read_call(self, node: Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        target: Any = node.target
        example = node.meta.get("example_value")
        if node.op == "call_method":
            return self._add(node, _method(target), target, args, kwargs, example)
        if target is operator.getitem and isinstance(args[0], (list, tuple)):
            return args[0][args[1]]
        if target in _MODE_SETTERS:
            return target(*args, **kwargs)
        if target is torch._C._log_api_usage_once:
            return None
        name = getattr(target, "__name__", "")
        if name.startswith("_foreach_") and isinstance(args[0], (list, tuple)) | isinstance(args[-1], (list, tuple)):
            return self._read_elements(node, name, args, kwargs, example)
        return self._add(node, target, target, args, kwargs, example)

    def _read_elements(self, node: Node, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], example: Any) -> Any:
        """An operator on lists, as calls on each element."""
        in_place = name.endswith("_")
        function = element_function(name.removesuffix("_"), args)
        if function is None:
            raise _NotUnderstood
        values = (*args, *kwargs.values())
        count = max(len(value) for value in values if isinstance(value, (list, tuple)))

        def of(value: Any, index: int) -> Any:
            return value[index] if isinstance(value, (list, tuple)) else value

        results = []
        for index in range(count):
            elements = tuple(of(value, index) for value in args)
            others = {key: of(value, index) for key, value in kwargs.items()}
            if in_place:
                result = self._add(node, _into(function, elements[0]), name, elements, others, elements[0].fake)
                self._calls[-1] = self._calls[-1]._replace(written=elements[0])
            else:
                result = self._add(node, function, name, elements, others, example[index])
            results.append(result)
        return None if in_place else results

    def _add(
        self,
        node: Node,
        function: Callable[..., Any],
        identity: Hashable,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        example: Any,
    ) -> Any:
        tensors: dict[_Tensor, int] = {}

        def key(value: Any) -> Hashable:
            if isinstance(value, _Tensor):
                first = value not in tensors
                number = tensors.setdefault(value, len(tensors))
                return ("tensor", number, value.key() if first else None)
            if isinstance(value, (tuple, list)):
                return (type(value).__name__, *map(key, value))
            if isinstance(value, dict):
                return ("dict", *((name, key(entry)) for name, entry in value.items()))
            if isinstance(value, slice):
                return ("slice", key(value.start), key(value.stop), key(value.step))
            if isinstance(value, (float, complex)):
                return (type(value), repr(value))
            if isinstance(value, _CONSTANTS):
                return (type(value), value)
            raise _NotUnderstood

        mode = _mode()
        identified = (identity, mode, key(args), key(kwargs))
        number = self._numbers.get(identified)
        if number is None:
            number = self._numbers[identified] = len(self._equal)
            self._equal.append(_Equal(function, (args, kwargs), list(tensors), mode))
        result = _mapped(example, lambda leaf: None if leaf is None else _Tensor(leaf))
        results = list(_leaves(result))
        if not any(results):
            raise _NotUnderstood  # it changes what is not seen here
        self._calls.append(_Call(number, node, list(tensors), results))
        return result

    # -- one trace of every different call ---------------------------------------------------

    def everything(self) -> Callable[..., list[Any]]:
        """Runs every different call on tensors of its own; returns all results."""

        def run(*tensors: torch.Tensor) -> list[Any]:
            remaining = iter(tensors)
            results: list[Any] = []
            for equal in self._equal:
                own: dict[Any, Any] = {tensor: next(remaining) for tensor in equal.tensors}
                args, kwargs = _mapped(equal.arguments, functools.partial(_replaced, own))
                with _set_mode(equal.mode):
                    results.extend(_leaves(equal.function(*args, **kwargs)))
            return results

        return run

    def examples(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Arguments for `everything`."""
        mode = detect_fake_mode(inputs)
        assert mode is not None
        with mode:
            return [_like(tensor) for equal in self._equal for tensor in equal.tensors]

    # -- the new graph -----------------------------------------------------------------------

    def write(self, traced: torch.fx.GraphModule) -> torch.fx.GraphModule:
        operators = self._split(traced)
        graph = torch.fx.Graph()
        shown: dict[int, list[_Tensor]] = defaultdict(list)
        inputs: list[tuple[_Tensor, Node]] = []
        for position, (tensor, fake) in enumerate(zip(self._arguments, self._inputs, strict=True)):
            node = graph.placeholder(f"arg{position}_1")
            node.meta["val"] = fake
            if tensor is not None:
                tensor.value = node
                shown[tensor.memory].append(tensor)
                inputs.append((tensor, node))
        for call in self._calls:
            _copy(graph, call, operators[call.number], shown)
        for tensor, node in inputs:
            if tensor.value is not node:
                written = graph.call_function(aten.copy_.default, (node, _value(tensor)))
                written.meta["val"] = node.meta["val"]
        returned = self._of_nodes(self._graph.output_node().args[0])
        graph.output(_mapped(returned, lambda v: _value(v) if isinstance(v, _Tensor) else v))
        with _use_lazy_graph_module(True):  # nobody calls it
            return _make_graph_module(traced, graph)

    def _split(self, traced: torch.fx.GraphModule) -> list[_Operators]:
        """The operators of each different call."""
        order = {node: index for index, node in enumerate(traced.graph.nodes)}
        placeholders = iter(traced.graph.find_nodes(op="placeholder"))
        copies = {n.args[0]: n.args[1] for n in traced.graph.find_nodes(op="call_function", target=aten.copy_.default)}
        results: Any = iter(traced.graph.output_node().args[0])  # type: ignore[arg-type]
        examples = {call.number: call.results for call in reversed(self._calls)}
        split = []
        for number, equal in enumerate(self._equal):
            own = [next(placeholders) for _ in equal.tensors]
            values = [next(results) for _ in examples[number]]
            for value, result in zip(values, examples[number], strict=True):
                if (result is None) != (value is None) or (result and not _is_alike(result, value)):
                    raise _NotUnderstood
            writes = {index: _copied(copies[node], node) for index, node in enumerate(own) if node in copies}
            needed: set[Node] = set()
            todo: list[Node] = [n for n in (*values, *writes.values()) if n is not None]
            while todo:
                node = todo.pop()
                if node not in needed and node.op != "placeholder":
                    needed.add(node)
                    todo.extend(node.all_input_nodes)
            split.append(_Operators(own, sorted(needed, key=order.__getitem__), values, writes))
        return split


def _copy(graph: torch.fx.Graph, call: _Call, operators: _Operators, shown: dict[int, list[_Tensor]]) -> None:
    """Adds the operators of a call. shown: tensors that have a value, by their memory."""
    nodes: dict[Node, Node] = {}
    for placeholder, tensor in zip(operators.placeholders, call.tensors, strict=True):
        nodes[placeholder] = _value(tensor)
    stack_trace = call.node.meta.get("stack_trace")
    for node in operators.nodes:
        copied = nodes[node] = graph.node_copy(node, nodes.__getitem__)
        copied.meta = {"val": node.meta.get("val"), "stack_trace": stack_trace}
    for index, written in operators.writes.items():
        _write(call, call.tensors[index], nodes[written], shown)
    found: Node | None
    for result, found in zip(call.results, operators.results, strict=True):
        if result is None or found is None:
            continue
        value = nodes[found]
        result.value = value
        if found in operators.nodes and _Tensor(found.meta["val"]).layout == result.layout:
            value.meta["val"] = result.fake  # in the memory that Dynamo has found
        shown[result.memory].append(result)
        if call.written is not None:
            _write(call, call.written, value, shown)


def _write(call: _Call, tensor: _Tensor, value: Node, shown: dict[int, list[_Tensor]]) -> None:
    """What the call puts into `tensor`."""
    if any(other is not tensor and other.memory == tensor.memory for other in call.tensors):
        raise _NotUnderstood
    for other in shown[tensor.memory]:
        if other.layout == tensor.layout:
            other.value = value
        elif other.is_input:
            raise _NotUnderstood
        else:
            other.value = None


def _copied(source: Any, target: Node) -> Node:
    """What `target` becomes, without a copy that would change nothing."""
    while source.target is aten.copy.default and _properties(source.args[1]) == _properties(target):
        source = source.args[1]
    return source


def _properties(node: Node) -> Hashable:
    value = node.meta["val"]
    return value.dtype, value.shape, value.device


def _value(tensor: _Tensor) -> Node:
    if tensor.value is None:
        raise _NotUnderstood
    return tensor.value


def _is_alike(result: _Tensor, node: Any) -> bool:
    value = node.meta.get("val") if isinstance(node, Node) else None
    return isinstance(value, torch.Tensor) and (value.dtype, tuple(value.shape)) == result.layout[:2]


def _like(tensor: _Tensor) -> torch.Tensor:
    dtype, sizes, strides, offset = tensor.layout
    elements = tensor.fake.untyped_storage().nbytes() // dtype.itemsize
    if elements == tensor.fake.numel():
        made = torch.empty_strided(sizes, strides, dtype=dtype, device=tensor.fake.device)
    else:
        memory = torch.empty(elements, dtype=dtype, device=tensor.fake.device)
        made = memory.as_strided(sizes, strides, offset)
    return made.requires_grad_(tensor.fake.requires_grad)


def _mapped(value: Any, function: Callable[[Any], Any]) -> Any:
    """`value` with every leaf of its tuples, lists, dictionaries and slices replaced."""
    if isinstance(value, (tuple, list)):
        entries = [_mapped(entry, function) for entry in value]
        return entries if isinstance(value, list) else tuple(entries)
    if isinstance(value, dict):
        return {key: _mapped(entry, function) for key, entry in value.items()}
    if isinstance(value, slice):
        return slice(*(_mapped(entry, function) for entry in (value.start, value.stop, value.step)))
    return function(value)


def _replaced(tensors: dict[Any, Any], value: Any) -> Any:
    return tensors[value] if isinstance(value, _Tensor) else value


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, (tuple, list)):
        for entry in value:
            yield from _leaves(entry)
    else:
        yield value


def _method(name: str) -> Callable[..., Any]:
    return lambda tensor, *args, **kwargs: getattr(tensor, name)(*args, **kwargs)


def _into(function: Callable[..., Any], tensor: _Tensor) -> Callable[..., Any]:
    return lambda *args, **kwargs: function(*args, **kwargs).to(tensor.fake.dtype)


# -- modes ---------------------------------------------------------------------------------------

_MODE_SETTERS = (
    torch._C._set_grad_enabled,
    torch.amp.autocast_mode._enter_autocast,
    torch.amp.autocast_mode._exit_autocast,
)


def _mode() -> tuple[Any, ...]:
    autocast = [(d, torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in _DEVICES]
    return torch.is_grad_enabled(), *autocast


@contextlib.contextmanager
def _set_mode(mode: tuple[Any, ...]) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.set_grad_enabled(mode[0]))
        for device, enabled, dtype in mode[1:]:
            if (enabled, dtype) != (torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)):
                stack.enter_context(torch.autocast(device, dtype, enabled, cache_enabled=False))
        yield


@contextlib.contextmanager
def _modes_kept() -> Iterator[None]:
    with _set_mode(_mode()):
        yield
