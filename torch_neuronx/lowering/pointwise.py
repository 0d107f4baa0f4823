# SPDX-License-Identifier: Apache-2.0
"""Rules of operators that treat every element alike: what their tables are made of."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch

from ..stablehlo import Builder, Value
from .promotion import opmath, result_type
from .registry import lowers
from .rounding import operand

Operand = Value | bool | int | float | complex


def finish(b: Builder, x: Value, index: int = 0) -> Value:
    """`x` rounded to the dtype, and broadcast to the shape, of result `index`."""
    out = b.out[index]
    return b.broadcast_to(b.convert(x, out.dtype), out.shape)


def arithmetic(*overloads: torch._ops.OpOverload, static: Iterable[str] = ()) -> Callable[[Callable], Callable]:
    """Enters `function(b, *values)`, whose operands come in the compute dtype of the result.

    A keyword-only `alpha` or `value` comes last. An operand that is None (an optional argument) stays None.
    """

    def enter(function: Callable[..., Value]) -> Callable[..., Value]:
        def rule(b: Builder, *operands: Operand | None, alpha: Operand | None = None, value: Operand | None = None):
            dtype = opmath(b.out[0].dtype)
            values = [None if x is None else operand(b, x, dtype) for x in operands]
            values += [b.value(x, dtype) for x in (alpha, value) if x is not None]
            return finish(b, function(b, *values))

        lowers(*overloads, static=static)(rule)
        return function

    return enter


def predicate(*overloads: torch._ops.OpOverload) -> Callable[[Callable], Callable]:
    """Enters `function(b, *values) -> bool value`, whose operands come in their common dtype."""

    def enter(function: Callable[..., Value]) -> Callable[..., Value]:
        def rule(b: Builder, *operands: Operand) -> Value:
            dtype = result_type(*operands)
            return finish(b, function(b, *(b.value(x, dtype) for x in operands)))

        lowers(*overloads)(rule)
        return function

    return enter
