# SPDX-License-Identifier: Apache-2.0
"""Where a compiled graph rounds half types.

Eager PyTorch computes every operator on half types in float32 and rounds its result. In a graph, a result that only
one other pointwise operator reads is never stored: that operator takes it as it was computed. The graph is the faster
for it, and nearer to what float32 gives; Inductor does the same. What shows stays: a cast that the program asks for
(`x.bfloat16()`), and what operators read that jump (`floor`, a comparison).
"""

from __future__ import annotations

import operator

import torch

from ..stablehlo import Builder, Value

aten = torch.ops.aten

# Continuous functions of every element, and normalizations.
_SMOOTH = frozenset(
    {
        aten.add.Scalar,
        aten.add.Tensor,
        aten.addcdiv.default,
        aten.addcmul.default,
        aten.cos.default,
        aten.div.Scalar,
        aten.div.Tensor,
        aten.exp.default,
        aten.gelu.default,
        aten.gelu_backward.default,
        aten.lerp.Scalar,
        aten.lerp.Tensor,
        aten.log.default,
        aten.mul.Scalar,
        aten.mul.Tensor,
        aten.neg.default,
        aten.pow.Tensor_Scalar,
        aten.reciprocal.default,
        aten.relu.default,
        aten.rsqrt.default,
        aten.rsub.Scalar,
        aten.rsub.Tensor,
        aten.sigmoid.default,
        aten.sigmoid_backward.default,
        aten.silu.default,
        aten.silu_backward.default,
        aten.sin.default,
        aten.softplus.default,
        aten.sqrt.default,
        aten.square.default,
        aten.sub.Scalar,
        aten.sub.Tensor,
        aten.tanh.default,
        aten.tanh_backward.default,
        aten.threshold_backward.default,
        aten._fused_rms_norm.default,
        aten.native_layer_norm.default,
    }
)
_HALF = (torch.bfloat16, torch.float16)


def note(b: Builder, node: torch.fx.Node, results: tuple[Value | None, ...]) -> None:
    """Lets the reader of `node`'s first result have it unrounded, if that is allowed."""
    if b.rounds_between or results[0] is None or results[0].dtype not in _HALF or node.target not in _SMOOTH:
        return
    users = list(node.users)
    if len(results) > 1:
        items = [user for user in users if user.target is operator.getitem and user.args[1] == 0]
        users = list(items[0].users) if len(items) == 1 else []
    if len(users) == 1 and users[0].target in _SMOOTH:
        b.unrounded.add(results[0].name)


def operand(b: Builder, x: Value | bool | int | float | complex, dtype: torch.dtype) -> Value:
    """An operand of a pointwise operator in its compute dtype."""
    if isinstance(x, Value) and x.name in b.unrounded and (source := b.converted.get(x.name)) is not None:
        return b.convert(source, dtype)
    return b.value(x, dtype)
