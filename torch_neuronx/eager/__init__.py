# SPDX-License-Identifier: Apache-2.0
"""Eager execution: what happens when an operator meets new shapes, and which operators ran."""

from __future__ import annotations

import torch

# Overloads that make or move tensors: their kernels are PyTorch's own or those of csrc/tensor, which comes
# back to the entry of copy_ where a copy needs a program. The rules serve graphs. The `unsafe` ones return
# views, though their schemas do not say so. `zeros_like` and its like only look at their tensor: PyTorch's allocate
# and fill, and so take one without memory too, as fake tensors are.
_WITHOUT_KERNEL = {
    "aten::copy_",
    "aten::_to_copy",
    "aten::clone",
    "aten::full_like",
    "aten::new_full",
    "aten::new_ones",
    "aten::new_zeros",
    "aten::ones_like",
    "aten::zeros_like",
    "aten::contiguous",
    "aten::_unsafe_view",
    "aten::unsafe_split.Tensor",
    "aten::unsafe_split_with_sizes",
    "aten::lift",
    "aten::lift_fresh",
    "aten::resize_",
    "aten::empty.memory_format",
    "aten::empty_permuted",
    "aten::empty_strided",
}


# Under this key the index keeps the registrations, which spares a process with a warm cache the import of the
# rules and the walk over all schemas.
_REGISTRATIONS = b"registrations"


def register() -> None:
    """Registers a kernel for every overload that the lowering table covers. Called once, at first use of the device."""
    from .. import _C
    from ..compiler import program_index

    index = program_index()
    record = index.find(_REGISTRATIONS)
    registrations = record["operators"] if record else _registrations()
    for registration in registrations:
        _C.register_operator(*registration)
    _C.register_fallback()
    if not record:
        index.add(_REGISTRATIONS, {"operators": registrations})


def _registrations() -> list[list]:
    """Arguments of `_C.register_operator` for every overload, read off the table and the schemas."""
    from ..lowering import load_rules
    from .length_class import lengths_of
    from .variants import named_variants, qualified_name, variants

    table = load_rules()
    found: dict[str, list] = {}

    def enter(variant, rule) -> None:
        name = qualified_name(variant.overload)
        if name in found or (not variant.mutates and _is_view(variant.overload)):
            return
        if torch.Tag.inplace_view in variant.overload.tags:  # changes the tensor's sizes or strides, not its memory
            return
        log_name = variant.overload._schema.name if rule.whole else name
        statics, updated, written = sorted(rule.static), list(variant.updated), list(variant.written)
        with_kernel, lengths = name not in _WITHOUT_KERNEL, lengths_of(variant, rule)
        found[name] = [name, log_name, statics, updated, written, rule.whole, with_kernel, lengths]

    for functional, rule in list(table.items()):
        if functional.namespace == "aten":
            for variant in variants(functional):
                enter(variant, rule)
    for variant in named_variants():
        if variant.functional in table:
            enter(variant, table[variant.functional])
    return list(found.values())


def _is_view(overload) -> bool:
    """Whether the schema returns an alias of an argument."""
    return any(r.alias_info is not None for r in overload._schema.returns)


def get_executed_ops() -> list[str]:
    """Names of the operators that have run on the device since `clear_op_tracking` (waits for queued work)."""
    from .. import _C, neuron

    neuron.synchronize()
    return sorted({*_C.executed_operators(), *_C.executed_graph_operators()})


def get_fallback_ops() -> list[str]:
    """Names of the operators that have run on the CPU since `clear_op_tracking` (waits for queued work)."""
    from .. import _C, neuron

    neuron.synchronize()
    return _C.fallback_operators()


def clear_op_tracking() -> None:
    """Empties both lists."""
    from .. import _C

    _C.clear_operator_log()
    _C.clear_graph_operator_log()
