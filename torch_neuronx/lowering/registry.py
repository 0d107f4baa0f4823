# SPDX-License-Identifier: Apache-2.0
"""The lowering table: functional ATen overload -> rule."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch

from ..stablehlo import Builder, Value


class LoweringError(RuntimeError):
    """An operator that has no StableHLO form here; the message names it, its line and the way out."""


class DataDependentShape(LoweringError):
    """The result's shape depends on the data (a boolean mask as index, say).

    The eager path then runs the operator on the host; a graph cannot contain it.
    """


class Rule(NamedTuple):
    """How one functional overload becomes StableHLO.

    function: `rule(b, *arguments)` with the schema's arguments in order, defaults filled in. Tensors
        arrive as `Value`. `Scalar` and `float` arguments arrive as 0-dim `Value` (eager) or as
        Python numbers (a graph): `b.value(x, dtype)` takes both. Everything else is a Python
        value. Keyword-only arguments (alpha, dtype, device …) are passed by keyword, and only
        those that the function names. Returns one value or a sequence, in the order of the schema's returns; None
        stands for an undefined tensor. Results have the shapes and dtypes of `b.out`.
    static: names of `Scalar`/`float` arguments that the rule needs as Python values (they become
        part of the program key: a new value compiles anew).
    whole: the overload is a composite of PyTorch that is lowered whole in inference; under
        autograd PyTorch's own decomposition runs.
    meta: its results on the meta device: called like the overload, where the layout (or the time, or the limits) of
        PyTorch's own are not the ones wanted. None: calls the overload.
    """

    function: Callable[..., Any]
    static: frozenset[str]
    whole: bool
    meta: Callable[..., Any] | None = None


TABLE: dict[torch._ops.OpOverload, Rule] = {}
# Rules for operators that libraries register, by qualified name. They serve graphs only.
_OF_LIBRARIES: dict[str, Rule] = {}

# Operators of our own, which graphs hold where several of ATen's are one. Each has an implementation by ATen's, for
# shapes, and for graphs that run operator by operator.
LIBRARY = torch.library.Library("torch_neuronx", "DEF")


def lowers(
    *overloads: torch._ops.OpOverload,
    static: Iterable[str] = (),
    whole: bool = False,
    meta: Callable[..., Any] | None = None,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Enters the decorated rule into the table for every overload named."""

    def enter(function: Callable[..., Any]) -> Callable[..., Any]:
        for overload in overloads:
            if overload in TABLE:
                raise ValueError(f"{overload} has two lowering rules")
            TABLE[overload] = Rule(function, frozenset(static), whole, meta)
        return function

    return enter


def lowers_of_library(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Like `lowers`, for the operator `name` ("library::operator") of a library that need not be installed."""

    def enter(function: Callable[..., Any]) -> Callable[..., Any]:
        _OF_LIBRARIES[name] = Rule(function, frozenset(), False)
        return function

    return enter


def rule_of(overload: torch._ops.OpOverload) -> Rule | None:
    """The rule of the table, or that for the operator of a library."""
    return TABLE.get(overload) or _OF_LIBRARIES.get(overload.name())


def lower(
    b: Builder, overload: torch._ops.OpOverload, args: tuple, kwargs: dict[str, Any], out: tuple[torch.Tensor, ...]
) -> tuple[Value | None, ...]:
    """Applies the rule of `overload`; returns the values of its results.

    out: meta tensors of the results, from PyTorch's meta kernel.
    There has to be a rule. Raises AssertionError when a rule returns other shapes
    or dtypes than `out` (a bug of the rule).
    """
    rule = rule_of(overload)
    assert rule is not None, f"{overload} has no rule"
    positional: list[Any] = []
    keyword: dict[str, Any] = {}
    accepted = rule.function.__kwdefaults__ or {}
    names = rule.function.__code__.co_varnames[
        : rule.function.__code__.co_argcount + rule.function.__code__.co_kwonlyargcount
    ]
    for index, argument in enumerate(overload._schema.arguments):
        if index < len(args):
            given = args[index]
        elif argument.name in kwargs:
            given = kwargs[argument.name]
        else:
            given = argument.default_value
        if argument.kwarg_only:
            if argument.name in accepted or argument.name in names:
                keyword[argument.name] = given
        else:
            positional.append(given)
    b.out = out
    result = rule.function(b, *positional, **keyword)
    values = (result,) if result is None or isinstance(result, Value) else tuple(result)
    assert len(values) == len(out), f"{overload}: {len(values)} results, expected {len(out)}"
    for index, (value, meta) in enumerate(zip(values, out, strict=True)):
        if value is not None:
            got, expected = (value.shape, value.dtype), (tuple(meta.shape), meta.dtype)
            assert got == expected, f"{overload}: result {index} is {got}, PyTorch says {expected}"
    return values
