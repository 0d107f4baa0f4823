# SPDX-License-Identifier: Apache-2.0
"""`aten::_foreach_*`: one operator on lists of tensors, taken apart into the operator on each of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

aten = torch.ops.aten

# Where the operator on one tensor has another name, or takes a number only under one.
_OTHER_NAMES: dict[str, Callable[..., Any]] = {
    "_foreach_copy": aten.copy,
    "_foreach_norm": aten.linalg_vector_norm,
    "_foreach_zero": aten.zeros_like,
    "_foreach_powsum": lambda x, ord=2, dtype=None: aten.sum(aten.pow(aten.abs(x), ord), dtype=dtype),
}
_OF_A_NUMBER: dict[str, Callable[..., Any]] = {
    "_foreach_maximum": aten.clamp_min,
    "_foreach_minimum": aten.clamp_max,
    "_foreach_clamp_max": aten.clamp_max,
    "_foreach_clamp_min": aten.clamp_min,
    "_foreach_addcdiv": lambda x, a, b, value=1: aten.addcdiv(x, a, b, value=value),
    "_foreach_addcmul": lambda x, a, b, value=1: aten.addcmul(x, a, b, value=value),
}


def foreach_decompositions() -> dict[torch._ops.OpOverload, Callable[..., Any]]:
    """A decomposition for every functional overload."""
    found: dict[torch._ops.OpOverload, Callable[..., Any]] = {}
    for name in torch._C._dispatch_get_all_op_names():
        name, _, overload_name = name.removeprefix("aten::").partition(".")
        if not name.startswith("_foreach_") or name.endswith("_") or overload_name.endswith("out"):
            continue
        single = _single(name, overload_name)
        if single is not None:
            overload = getattr(getattr(aten, name), overload_name or "default")
            found[overload] = _for_each(overload, single)
    return found


def _single(name: str, overload_name: str) -> Callable[..., Any] | None:
    if overload_name.startswith("Scalar") and overload_name != "ScalarAndTensor" and name in _OF_A_NUMBER:
        return _OF_A_NUMBER[name]
    return _OTHER_NAMES.get(name) or getattr(aten, name.removeprefix("_foreach_"), None)


def element_function(name: str, args: Sequence[Any]) -> Callable[..., Any] | None:
    """What the functional operator `name` on lists does with each element; None when nothing says so.
    args: the lists, and what is the same for all elements."""
    last = args[-1][0] if isinstance(args[-1], (list, tuple)) and args[-1] else args[-1]
    of_a_number = isinstance(last, (int, float, complex)) or name in ("_foreach_addcdiv", "_foreach_addcmul")
    return _single(name, "Scalar" if of_a_number else "List")


def _for_each(overload: torch._ops.OpOverload, single: Callable[..., Any]) -> Callable[..., Any]:
    lists = {a.name for a in overload._schema.arguments if isinstance(a.type, torch.ListType)}

    def rule(*args: Any, **kwargs: Any) -> list[torch.Tensor]:
        names = [a.name for a in overload._schema.arguments]
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        count = max(len(given[name]) for name in lists if name in given)

        def of(name: str, index: int) -> Any:
            return given[name][index] if name in lists else given[name]

        return [single(*(of(n, i) for n in names[: len(args)]), **{n: of(n, i) for n in kwargs}) for i in range(count)]

    return rule
