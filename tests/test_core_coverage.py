# SPDX-License-Identifier: Apache-2.0
"""Every operator of PyTorch's core ATen set has a lowering rule, or a reason not to."""

import pytest
import torch

from torch_neuronx.eager.variants import functional_of
from torch_neuronx.lowering import load_rules

# The result's shape depends on the data: no program of static shape can compute it.
DATA_DEPENDENT = {"aten::nonzero", "aten::_local_scalar_dense"}
# They make tensors or change their storage: csrc/tensor.
STORAGE = {"aten::empty.memory_format", "aten::empty_strided", "aten::resize_"}
# They read a property of the tensor; no device computes them.
PROPERTIES = {
    "aten::sym_is_contiguous",
    "aten::sym_numel",
    "aten::sym_size.int",
    "aten::sym_storage_offset",
    "aten::sym_stride.int",
}


def core_overloads():
    found = []
    for name in torch._C._dispatch_get_all_op_names():
        if not name.startswith("aten::"):
            continue
        base, _, overload = name.removeprefix("aten::").partition(".")
        try:
            operator = getattr(getattr(torch.ops.aten, base), overload or "default")
        except AttributeError:
            continue
        if torch.Tag.core in operator.tags:
            found.append(pytest.param(name, operator, id=name.removeprefix("aten::")))
    return sorted(found, key=lambda p: p.id)


def test_the_set_is_found():
    assert len(core_overloads()) > 150


@pytest.mark.parametrize("name, operator", core_overloads())
def test_core_operator(name, operator):
    if name in DATA_DEPENDENT | STORAGE | PROPERTIES:
        return
    # Arguments are written by the launch: the functional form has the rule.
    if any(a.alias_info is not None and a.alias_info.is_write for a in operator._schema.arguments):
        operator = functional_of(operator)
    if operator in load_rules():
        return
    # PyTorch itself takes it apart, before any device sees it.
    assert torch._C._dispatch_has_kernel_for_dispatch_key(name, "CompositeImplicitAutograd"), (
        f"{name} is a core ATen operator, and has no lowering rule"
    )
