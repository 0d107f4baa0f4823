# SPDX-License-Identifier: Apache-2.0
"""From a functional overload to its in-place and out= variants, read off the schemas.

The lowering table has functional overloads only. `add_.Tensor` and `add.out` are `add.Tensor` whose
result goes to an argument; the launch writes it there.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import NamedTuple

import torch

OpOverload = torch._ops.OpOverload

# Functional counterparts that the naming rules below do not find.
_FUNCTIONAL = {
    "aten::normal_": "aten::normal_functional",
    "aten::_index_put_impl_": "aten::index_put",
    "aten::_native_batch_norm_legit": "aten::_native_batch_norm_legit_functional",
}

# Overloads that change arguments which their schema does not mark: (functional, arguments updated). One
# that is its own functional overload has a rule that returns the new contents after the results.
_UNMARKED = {
    "aten::native_batch_norm": ("aten::native_batch_norm", ("running_mean", "running_var")),
}


class Variant(NamedTuple):
    """One overload in terms of a functional one.

    functional: computes what the overload returns anew, then the new contents of what it mutates.
    updated: arguments that are read and written; written: arguments that are written only.
    """

    overload: OpOverload
    functional: OpOverload
    updated: tuple[str, ...] = ()
    written: tuple[str, ...] = ()

    @property
    def mutates(self) -> bool:
        return bool(self.updated or self.written)


def qualified_name(overload: OpOverload) -> str:
    """`aten::add.Tensor`, as dispatcher and logs write it."""
    return overload._schema.name + (f".{overload._schema.overload_name}" if overload._schema.overload_name else "")


@functools.cache
def resolve(name: str) -> OpOverload:
    """The overload of a qualified name."""
    qualified, _, overload = name.partition(".")
    namespace, _, base = qualified.partition("::")
    return getattr(getattr(getattr(torch.ops, namespace), base), overload or "default")


def _split(overload: OpOverload) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Names of the arguments that the schema marks as updated, and as written (out=)."""
    updated: list[str] = []
    written: list[str] = []
    for argument in overload._schema.arguments:
        if argument.alias_info is not None and argument.alias_info.is_write:
            (written if argument.is_out else updated).append(argument.name)
    return tuple(updated), tuple(written)


def _signature(overload: OpOverload, without: tuple[str, ...] = ()) -> list[tuple[str, str]]:
    return [(a.name, str(a.type)) for a in overload._schema.arguments if a.name not in without]


def functional_of(overload: OpOverload) -> OpOverload | None:
    """The functional overload that computes the same; None when PyTorch has none."""
    name = overload._schema.name
    if name in _UNMARKED and not overload._schema.overload_name:
        return resolve(_UNMARKED[name][0])
    updated, written = _split(overload)
    if not updated and not written:
        return overload
    if name in _FUNCTIONAL and updated:
        return resolve(_FUNCTIONAL[name])
    namespace, _, base = name.partition("::")
    if updated:
        base = base.removesuffix("_")
    packet = getattr(getattr(torch.ops, namespace), base, None)
    if packet is None:
        return None
    wanted = _signature(overload, without=written)
    for candidate_name in packet.overloads():
        candidate = getattr(packet, candidate_name)
        if candidate is not overload and not any(_split(candidate)) and _signature(candidate) == wanted:
            return candidate
    return None


@functools.cache
def variant_of(overload: OpOverload) -> Variant | None:
    """How `overload` is computed by a functional one; None when there is no such."""
    functional = functional_of(overload)
    if functional is None:
        return None
    updated, written = _split(overload)
    if overload._schema.name in _UNMARKED:
        updated = _UNMARKED[overload._schema.name][1]
    return Variant(overload, functional, updated, written)


def variants(functional: OpOverload) -> Iterator[Variant]:
    """The functional overload itself, then its in-place and out= forms."""
    yield variant_of(functional) or Variant(functional, functional)
    packet = functional.overloadpacket
    wanted = _signature(functional)
    for name in packet.overloads():
        candidate = getattr(packet, name)
        updated, written = _split(candidate)
        if written and not updated and _signature(candidate, without=written) == wanted:
            yield Variant(candidate, functional, (), written)
    namespace, _, base = functional._schema.name.partition("::")
    in_place = getattr(getattr(torch.ops, namespace), base + "_", None)
    if in_place is not None:
        for name in in_place.overloads():
            candidate = getattr(in_place, name)
            updated, written = _split(candidate)
            if updated and not written and _signature(candidate) == wanted:
                yield Variant(candidate, functional, updated, ())


def named_variants() -> Iterator[Variant]:
    """The variants that the schemas do not show."""
    for name in [*_FUNCTIONAL, *_UNMARKED]:
        try:
            variant = variant_of(resolve(name))
        except AttributeError:  # not in this version of PyTorch
            continue
        if variant is not None:
            yield variant
