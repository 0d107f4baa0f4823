# SPDX-License-Identifier: Apache-2.0
"""Control flow that depends on data: `torch.cond`, `while_loop` and `scan`, whose branches and bodies are graphs.

Each becomes one StableHLO operation with regions; the values around a region are used in it as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..stablehlo import Builder, Value
from .registry import LoweringError

# Emits a branch or body: its graph, and the values of its placeholders. Returns the values of its outputs.
LowerBody = Callable[[torch.fx.GraphModule, Sequence[Any]], list[Any]]


def lower_control_flow(b: Builder, arguments: Sequence[Any], lower_body: LowerBody) -> tuple[Value, ...]:
    """The results of the higher-order operator that `b.location` names.

    arguments: as the operator has them; graphs as modules, tensors as values. Raises LoweringError for an operator
    without rule, and for a branch or body that does what has no meaning there.
    """
    rule = _RULES.get(b.location.operator)
    if rule is None:
        raise _refused(b, f"has no StableHLO form; {', '.join(_RULES)} have")
    token = b.collective_token
    results = rule(b, lower_body, *arguments)
    if b.collective_token is not token:
        raise _refused(
            b, "holds a collective, which not every rank may come to equally often; call it outside of branch and loop"
        )
    return results


def _refused(b: Builder, why: str) -> LoweringError:
    line = f" (at {b.location.file}:{b.location.line})" if b.location.file else ""
    return LoweringError(f"{b.location.operator} {why}{line}")


def _cond(
    b: Builder,
    lower_body: LowerBody,
    predicate: Value | bool,
    true_graph: torch.fx.GraphModule,
    false_graph: torch.fx.GraphModule,
    operands: Sequence[Any],
) -> tuple[Value, ...]:
    if not isinstance(predicate, Value):
        return tuple(lower_body(true_graph if predicate else false_graph, operands))
    return b.if_(
        _as_predicate(b, predicate),
        lambda: _as_values(b, lower_body(true_graph, operands)),
        lambda: _as_values(b, lower_body(false_graph, operands)),
    )


def _while_loop(
    b: Builder,
    lower_body: LowerBody,
    condition_graph: torch.fx.GraphModule,
    body_graph: torch.fx.GraphModule,
    carried: Sequence[Any],
    additional: Sequence[Any],
) -> tuple[Value, ...]:
    def condition(*values: Value) -> Value:
        (result,) = _as_values(b, lower_body(condition_graph, [*values, *additional]))
        return _as_predicate(b, result)

    def body(*values: Value) -> list[Value]:
        results = _as_values(b, lower_body(body_graph, [*values, *additional]))
        return _of_same_types(b, initial, results)

    initial = _as_values(b, carried)
    return _loop(b, initial, condition, body)


def _scan(
    b: Builder,
    lower_body: LowerBody,
    step_graph: torch.fx.GraphModule,
    initial: Sequence[Any],
    inputs: Sequence[Value],
    additional: Sequence[Any],
) -> tuple[Value, ...]:
    """Results: what is carried in the end, then what the steps return, stacked along a new first dimension."""
    state = _as_values(b, initial)
    (output_node,) = step_graph.graph.find_nodes(op="output")
    length = inputs[0].shape[0]
    stacks = [
        b.constant(0, (tensor := node.meta["val"]).dtype, (length, *tensor.shape))
        for node in output_node.args[0][len(state) :]
    ]

    def body(index: Value, *values: Value) -> list[Value]:
        carried, collected = values[: len(state)], values[len(state) :]
        step = [_row(b, x, index) for x in inputs]
        results = _as_values(b, lower_body(step_graph, [*carried, *step, *additional]))
        rows = [_with_row(b, stack, row, index) for stack, row in zip(collected, results[len(state) :], strict=True)]
        following = _of_same_types(b, state, results[: len(state)])
        return [b.add(index, b.constant(1, torch.int64)), *following, *rows]

    first = b.constant(0, torch.int64)
    below = lambda index, *_: b.compare(index, b.constant(length, torch.int64), "LT")  # noqa: E731
    return _loop(b, [first, *state, *stacks], below, body)[1:]


def _loop(b: Builder, initial: Sequence[Value], condition: Callable, body: Callable) -> tuple[Value, ...]:
    streams = b.random_streams
    results = b.while_loop(initial, condition, body)
    if b.random_streams != streams:
        raise _refused(
            b, "has a random operator in its body, which would draw the same numbers at each step; draw them before"
        )
    return results


def _row(b: Builder, x: Value, index: Value) -> Value:
    zero = b.constant(0, index.dtype)
    row = b.dynamic_slice(x, [index, *[zero] * (x.ndim - 1)], [1, *x.shape[1:]])
    return b.reshape(row, x.shape[1:])


def _with_row(b: Builder, stack: Value, row: Value, index: Value) -> Value:
    zero = b.constant(0, index.dtype)
    return b.dynamic_update_slice(stack, b.reshape(row, (1, *row.shape)), [index, *[zero] * row.ndim])


def _as_predicate(b: Builder, x: Value) -> Value:
    return b.reshape(b.convert(x, torch.bool), ())


def _as_values(b: Builder, results: Sequence[Any]) -> list[Value]:
    """Numbers that a branch returns or a loop carries become 0-dim values, as PyTorch sees them."""
    if any(result is None for result in results):
        raise _refused(b, "has a branch or body that returns None; return tensors")
    default = torch.get_default_dtype()
    return [
        r if isinstance(r, Value) else b.constant(r, default if isinstance(r, float) else torch.int64) for r in results
    ]


def _of_same_types(b: Builder, before: Sequence[Value], after: Sequence[Value]) -> list[Value]:
    for index, (old, new) in enumerate(zip(before, after, strict=True)):
        if (old.shape, old.dtype) != (new.shape, new.dtype):
            raise _refused(
                b,
                f"carries {list(old.shape)} {old.dtype} as value {index} into its body, which returns "
                f"{list(new.shape)} {new.dtype}; both must be the same",
            )
    return list(after)


_RULES: dict[str, Callable[..., tuple[Value, ...]]] = {"cond": _cond, "scan": _scan, "while_loop": _while_loop}
