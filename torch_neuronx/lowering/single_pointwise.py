# SPDX-License-Identifier: Apache-2.0
"""Programs of one pointwise operator: a host kernel where the target has one.

The software core runs a program that is one kernel without XLA, whose way into a program takes longer than a small
operator, and which wakes its thread pool for a large one while the kernel's threads still spin after the last. In a
program of several operators the call would keep XLA from fusing them: so this serves eager operators only.

Host kernel `neuron.pointwise`: a function of up to three operands of the result's shape and dtype, float32 or bfloat16,
or of two of which one is 0-dim; then a factor, 0-dim, where the function has one. 0-dim operands may also be float32
and int64. Its config is `operator=add`, a name of `_KERNELS`. The result may take the memory of an operand.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..stablehlo import Builder, Value

aten = torch.ops.aten

KERNEL = "neuron.pointwise"

# Functions that cost less than the memory they touch: name, tensor operands, whether there is a factor.
_KERNELS: dict[torch._ops.OpOverload, tuple[str, int, bool]] = {
    aten.add.Tensor: ("add", 2, True),
    aten.sub.Tensor: ("sub", 2, True),
    aten.mul.Tensor: ("mul", 2, False),
    aten.div.Tensor: ("div", 2, False),
    aten.maximum.default: ("maximum", 2, False),
    aten.minimum.default: ("minimum", 2, False),
    aten.addcmul.default: ("addcmul", 3, True),
    aten.addcdiv.default: ("addcdiv", 3, True),
    aten.relu.default: ("relu", 1, False),
    aten.neg.default: ("neg", 1, False),
    aten.abs.default: ("abs", 1, False),
    aten.sqrt.default: ("sqrt", 1, False),
    aten.reciprocal.default: ("reciprocal", 1, False),
}
_DTYPES = (torch.float32, torch.bfloat16)
_SCALARS = (torch.float32, torch.int64)


def lower_single(
    b: Builder,
    overload: torch._ops.OpOverload,
    operands: Sequence[Value],
    count: int,
    dtype: torch.dtype,
    updated: int | None,
) -> Value | None:
    """The 1-D result of `count` elements in memory order; None where no kernel computes it.

    operands: in the order of the schema: tensors in memory order, all as the result is, or of one element.
    updated: the operand that the result replaces.
    """
    if KERNEL not in b.kernels or overload not in _KERNELS or dtype not in _DTYPES:
        return None
    name, tensors, factor = _KERNELS[overload]
    dense = [v.shape == (count,) for v in operands]
    if len(operands) != tensors + factor or sum(dense[:tensors]) < (3 if tensors == 3 else 1):
        return None
    if any(v.dtype not in ((dtype,) if full else (dtype, *_SCALARS)) for v, full in zip(operands, dense, strict=True)):
        return None
    values = [v if full else b.reshape(v, ()) for v, full in zip(operands, dense, strict=True)]
    return b.custom_call(KERNEL, values, [((count,), dtype)], f"operator={name}", updated)[0]
