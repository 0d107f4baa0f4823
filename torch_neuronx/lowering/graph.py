# SPDX-License-Identifier: Apache-2.0
"""FX graphs of ATen operators, and PyTorch's decompositions as such graphs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from ..stablehlo import Builder, Value
from ..stablehlo.builder import Location
from . import channels_last, rounding
from .control_flow import lower_control_flow
from .meta import meta_of
from .patterns import lower_pattern
from .registry import TABLE, LoweringError, lower, rule_of
from .view_operand import layout_of, read_view, to_memory_order


def lower_graph(
    b: Builder,
    graph: torch.fx.Graph | torch.fx.GraphModule,
    inputs: Sequence[Any],
    wanted: Sequence[torch.fx.Node] | None = None,
    attributes: Mapping[str, Value] | None = None,
) -> list[Value | None]:
    """Emits every node of `graph`; returns the values of its outputs (None where the graph returns None).

    inputs: one value a placeholder, in order. `node.meta["val"]` holds fake tensors of the results.
    wanted: the nodes to return the values of, instead of the outputs.
    attributes: values of tensors that the graph holds, by name; others become constants.
    Raises LoweringError for an operator without rule and for a size that is not known.
    """
    graph = graph.graph if isinstance(graph, torch.fx.GraphModule) else graph
    attributes = attributes or {}
    environment: dict[torch.fx.Node, Any] = {}
    remaining = iter(inputs)
    outer = b.location
    for node in graph.nodes:
        if node.op == "placeholder":
            environment[node] = next(remaining)
        elif node.op == "output":
            returned = torch.fx.map_arg(node.args[0], lambda n: environment[n])
            b.location = outer
            if wanted is not None:
                return [environment[n] for n in wanted]
            return list(returned) if isinstance(returned, (list, tuple)) else [returned]
        elif node.op == "call_function":
            environment[node] = _call(b, node, environment, outer)
        elif node.op == "get_attr":
            held = attributes.get(str(node.target))
            branch = submodule_of(node)
            environment[node] = branch or (_constant(b, node) if held is None else held)
        else:
            raise LoweringError(f"a graph holds `{node.op}` {node.target!r}, which has no StableHLO form")
    raise LoweringError("a graph has no output node")


def _call(b: Builder, node: torch.fx.Node, environment: dict, outer: Location) -> Any:
    args: Any = torch.fx.map_arg(node.args, lambda n: environment[n])
    kwargs = torch.fx.map_arg(node.kwargs, lambda n: environment[n])
    if getattr(node.target, "__name__", "") == "getitem":
        return args[0][args[1]]
    if isinstance(node.target, torch._ops.HigherOrderOperator):
        b.location = Location(node.target.name(), *_position(node))
        return lower_control_flow(b, args, functools.partial(_lower_body, b))
    if not isinstance(node.target, torch._ops.OpOverload):
        raise LoweringError(f"{node.target!r} has no StableHLO form{_line(node)}")
    _refuse_unknown_sizes(node)
    b.location = Location(str(node.target), *_position(node)) if outer.operator == "unknown" else outer
    if node.target is torch.ops.aten.copy_.default:  # what an input holds in the end: `copy` as a value
        return lower(b, torch.ops.aten.copy.default, tuple(args), dict(kwargs), (node.meta["val"],))[0]
    if rule_of(node.target) is None:
        return _decomposed(b, node, args, kwargs)
    if node.target in _OF_MEMORY:
        return _of_memory(b, node, args, kwargs)
    if "val" not in node.meta:
        raise LoweringError(f"{node.target}: the graph does not say what it returns (no `val`){_line(node)}")
    results = node.meta["val"]
    several = isinstance(results, (tuple, list))
    grouped = lower_pattern(b, node, environment)
    if grouped is not None:
        return grouped
    if b.channels_last and not several:

        def apply(arguments: tuple[Any, ...], out: torch.Tensor) -> Any:
            return lower(b, target, arguments, dict(kwargs), (out,))[0]

        target = node.target
        reordered = channels_last.lower_pointwise(b, target, args, results, apply)
        if reordered is not None:
            return reordered
    lowered = lower(b, node.target, tuple(args), dict(kwargs), tuple(results) if several else (results,))
    rounding.note(b, node, lowered)
    return lowered if several else lowered[0]


def _lower_body(b: Builder, module: torch.fx.GraphModule, inputs: Sequence[Any]) -> list[Value | None]:
    """A branch or body, whose operators have lines of their own."""
    before, b.location = b.location, Location("unknown")
    results = lower_graph(b, module, inputs)
    b.location = before
    return results


def _decomposed(b: Builder, node: torch.fx.Node, args: Any, kwargs: dict[str, Any]) -> Any:
    """A node whose operator the table lacks: by PyTorch's decomposition."""
    positional: Any = torch.fx.map_arg(node.args, lambda n: meta_of(n.meta["val"]))
    keyword = torch.fx.map_arg(node.kwargs, lambda n: meta_of(n.meta["val"]))
    target: Any = node.target
    module = decompose(target, positional, {k: v for k, v in keyword.items() if k != "device"})
    if module is None:
        raise LoweringError(f"{node.target} has neither a lowering rule nor a decomposition into such{_line(node)}")
    from torch.utils import _pytree as pytree

    flat = [v for v in pytree.tree_leaves((list(args), dict(kwargs))) if isinstance(v, Value)]
    before = b.location
    results = lower_graph(b, module, flat)
    b.location = before
    return results if isinstance(node.meta.get("val"), (tuple, list)) else results[0]


# Operators whose strides and offset count from the beginning of their operand's memory.
_OF_MEMORY = (
    torch.ops.aten.as_strided.default,
    torch.ops.aten.as_strided_copy.default,
    torch.ops.aten.as_strided_scatter.default,
)


def _of_memory(b: Builder, node: torch.fx.Node, args: Sequence[Any], kwargs: dict[str, Any]) -> Value:
    """as_strided and its like, of a tensor of any dense layout."""
    source: Any = node.args[0]
    target: Any = node.target
    whole, result = source.meta["val"], node.meta["val"]
    layout = layout_of(whole.shape, whole.stride())
    if whole.storage_offset() or not layout.dense or layout.repeated:
        raise LoweringError(
            f"{node.target} of a tensor with sizes {tuple(whole.shape)}, strides {whole.stride()} and offset "
            f"{whole.storage_offset()}: a graph has only the elements of that tensor, not the rest of its memory; "
            f"call contiguous() or clone() on it first{_line(node)}"
        )
    flat = to_memory_order(b, args[0], whole.stride())
    if result.shape == whole.shape and node.target is torch.ops.aten.as_strided_scatter.default:
        out = torch.empty(flat.shape, dtype=flat.dtype, device="meta")
        (written,) = lower(b, target, (flat, *args[1:]), dict(kwargs), (out,))
        assert written is not None
        return read_view(b, written, tuple(whole.shape), whole.stride(), None)
    (value,) = lower(b, target, (flat, *args[1:]), dict(kwargs), (result,))
    assert value is not None
    return value


def _holder(node: torch.fx.Node) -> Any:
    holder: Any = node.graph.owning_module
    for name in str(node.target).split("."):
        holder = getattr(holder, name, None)
    return holder


def submodule_of(node: torch.fx.Node) -> torch.fx.GraphModule | None:
    """The graph that a `get_attr` node names (a branch of `torch.cond`, say); None when it names a tensor."""
    holder = _holder(node)
    return holder if isinstance(holder, torch.fx.GraphModule) else None


def all_nodes(graph: torch.fx.Graph) -> Iterator[torch.fx.Node]:
    """The nodes of the graph and of the graphs in it."""
    for node in graph.nodes:
        yield node
        if node.op == "get_attr" and (module := submodule_of(node)) is not None:
            yield from all_nodes(module.graph)


def attribute_of(node: torch.fx.Node) -> torch.Tensor:
    """The tensor that a `get_attr` node names. Raises LoweringError when it is none, or has no data."""
    holder = _holder(node)
    if not isinstance(holder, torch.Tensor) or isinstance(holder, torch._subclasses.FakeTensor) or holder.is_meta:
        raise LoweringError(f"the graph's attribute {node.target!r} is not a tensor with data")
    return holder


def _constant(b: Builder, node: torch.fx.Node) -> Value:
    """A tensor that the graph holds itself, as PyTorch's decompositions do with small tables."""
    holder = attribute_of(node)
    if holder.numel() > _LARGEST_CONSTANT:
        raise LoweringError(
            f"the graph's attribute {node.target!r} has {holder.numel()} elements; programs hold constants of up to "
            f"{_LARGEST_CONSTANT}: pass it as an argument, or register it as a buffer of the module"
        )
    return b.constant_array(holder.detach().cpu().flatten().tolist(), holder.dtype, tuple(holder.shape))


_LARGEST_CONSTANT = 4096


def _refuse_unknown_sizes(node: torch.fx.Node) -> None:
    values = node.meta.get("val")
    for value in values if isinstance(values, (tuple, list)) else [values]:
        if isinstance(value, torch.Tensor):
            for dim, size in enumerate(value.shape):
                if not isinstance(size, int):
                    raise LoweringError(
                        f"{node.target}: dimension {dim} has the symbolic size {size}, but programs have static "
                        f"shapes; compile with dynamic=False{_line(node)}"
                    )


def _position(node: torch.fx.Node) -> tuple[str, int]:
    """File and line of the innermost frame that Dynamo recorded."""
    file, line = "", 0
    for text in (node.meta.get("stack_trace") or "").splitlines():
        text = text.strip()
        if text.startswith('File "'):
            file, _, rest = text[6:].partition('", line ')
            line = int(rest.partition(",")[0])
    return file, line


def _line(node: torch.fx.Node) -> str:
    file, line = _position(node)
    return f" (at {file}:{line})" if file else ""


@functools.cache
def _decompositions() -> dict:
    """PyTorch's decompositions of operators that the table lacks."""
    from torch._decomp import decomposition_table

    return {overload: rule for overload, rule in decomposition_table.items() if overload not in TABLE}


def _decomposition(overload: torch._ops.OpOverload) -> Callable[..., Any] | None:
    """What computes `overload` by other operators: an entry of the table, or a kernel that serves every device."""
    rule = _decompositions().get(overload)
    if rule is not None:
        return rule
    for key in (torch._C.DispatchKey.CompositeImplicitAutograd, torch._C.DispatchKey.CompositeExplicitAutograd):
        if overload.has_kernel_for_dispatch_key(key):
            return functools.partial(overload._op_dk, key)
    return None


def decompose(
    overload: torch._ops.OpOverload, args: Sequence[Any], kwargs: dict[str, Any]
) -> torch.fx.GraphModule | None:
    """PyTorch's decomposition of one call into operators of the table; None when there is none.

    args, kwargs: with meta tensors. The placeholders of the graph are the tensors among them, in order;
    numbers are part of the graph. The graph returns a flat list of the results.
    """
    rule = _decomposition(overload)
    if rule is None:
        return None
    from torch._subclasses.fake_tensor import DynamicOutputShapeException, UnsupportedOperatorException
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.utils import _pytree as pytree

    leaves, structure = pytree.tree_flatten((list(args), dict(kwargs)))
    places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]

    def call(*tensors: torch.Tensor) -> list[torch.Tensor | None]:
        filled = list(leaves)
        for place, tensor in zip(places, tensors, strict=True):
            filled[place] = tensor
        positional, keyword = pytree.tree_unflatten(filled, structure)
        return pytree.tree_leaves(rule(*positional, **keyword), is_leaf=lambda x: x is None)

    # Kernels for every device fill and copy into tensors they made: `functionalize` turns that into values.
    functional = torch.func.functionalize(call, remove="mutations")
    try:
        trace = make_fx(functional, decomposition_table=_decompositions(), tracing_mode="fake")
        module = trace(*(leaves[i] for i in places))
    except (NotImplementedError, DynamicOutputShapeException, UnsupportedOperatorException):
        return None
    module.graph.eliminate_dead_code()
    for node in module.graph.nodes:
        if node.op == "call_function" and isinstance(node.target, torch._ops.OpOverload) and node.target not in TABLE:
            return None
        if node.op not in ("placeholder", "call_function", "get_attr", "output"):
            return None
    return module
