# SPDX-License-Identifier: Apache-2.0
"""Activation functions and their gradients."""

from __future__ import annotations

import torch
from case import FLOATS, LAYOUTS, SHAPES, Case, check, parametrize, sample, special

aten = torch.ops.aten
KINDS = FLOATS[:3]


def values(dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    """Without NaN and infinities: PyTorch's CPU kernels disagree with one another about gradients there."""
    return torch.nan_to_num(special(dtype, seed), 0.25, 20.0, -20.0)


def forward(name: str, *arguments, dtypes=KINDS, make=special, layouts=(), **options) -> Case:
    label = "-".join(map(str, arguments))
    op = getattr(aten, name).default
    return Case(op, lambda d: ((make(d), *arguments), {}), dtypes, label, layouts=layouts, **options)


def backward(name: str, *arguments, dtypes=FLOATS[:2]) -> Case:
    """Arguments after (grad_output, self)."""
    label = "-".join(map(str, arguments))
    op = getattr(aten, name).default
    return Case(op, lambda d: ((values(d, 1), values(d), *arguments), {}), dtypes, label, layouts=())


def gelu(approximate: str) -> list[Case]:
    keywords = {"approximate": approximate}
    return [
        Case(aten.gelu.default, lambda d: ((values(d),), keywords), KINDS, approximate, shapes=SHAPES),
        Case(
            aten.gelu_backward.default, lambda d: ((values(d, 1), values(d)), keywords), KINDS, approximate, layouts=()
        ),
    ]


CASES = [
    forward("relu", dtypes=(*FLOATS, torch.int64), layouts=LAYOUTS, shapes=SHAPES),
    forward("threshold", 0.5, 2.0),
    backward("threshold_backward", 0.5, dtypes=KINDS),
    forward("leaky_relu", 0.1),
    backward("leaky_relu_backward", 0.1, False),
    forward("hardtanh", -0.5, 2.0, dtypes=(*KINDS, torch.int64)),
    backward("hardtanh_backward", -0.5, 2.0),
    forward("elu"),
    forward("elu", 1.3, 1.1, 0.9),
    *(
        Case(
            aten.elu_backward.default,
            lambda d, r=r: ((values(d, 1), 1.3, 1.1, 0.9, r, values(d)), {}),
            id=str(r),
            layouts=(),
        )
        for r in (False, True)
    ),
    forward("celu", 1.3),
    forward("sigmoid", dtypes=(*FLOATS, torch.int64)),
    backward("sigmoid_backward"),
    backward("tanh_backward"),
    Case(
        aten.logit_backward.default,
        lambda d: ((values(d, 1), sample(6, 8, dtype=d, low=0.1, high=0.9)), {}),
        layouts=(),
    ),
    backward("logit_backward", 0.1),
    forward("silu", layouts=LAYOUTS),
    backward("silu_backward", dtypes=KINDS),
    forward("log_sigmoid_forward", make=values, mutable=False),
    Case(
        aten.log_sigmoid_backward.default,
        lambda d: ((values(d, 1), values(d), aten.log_sigmoid_forward(values(d))[1]), {}),
        FLOATS[:2],
        layouts=(),
    ),
    forward("hardsigmoid"),
    backward("hardsigmoid_backward"),
    forward("hardswish"),
    backward("hardswish_backward"),
    *gelu("none"),
    *gelu("tanh"),
    forward("softplus"),
    forward("softplus", 2, 5),
    backward("softplus_backward", 2, 5),
    forward("mish"),
    backward("mish_backward"),
    forward("softshrink", 0.75),  # a bfloat16 number: PyTorch 2.13 subtracts the exact threshold, 2.14 the rounded one
    backward("softshrink_backward", 0.75),
    forward("hardshrink", 0.7),
    backward("hardshrink_backward", 0.7),
    forward("glu", -1, make=values),
    forward("glu", 0, make=values),
    Case(aten.glu_backward.default, lambda d: ((values(d, 1)[:3], values(d), 0), {}), FLOATS[:2], layouts=LAYOUTS),
    Case(
        aten._prelu_kernel.default, lambda d: ((special(d), sample(8, dtype=d)), {}), KINDS, layouts=(), mutable=False
    ),
    Case(
        aten._prelu_kernel_backward.default,
        lambda d: ((values(d, 1), values(d), sample(6, 8, dtype=d)), {}),
        FLOATS[:2],
        layouts=(),
        mutable=False,
    ),
]


@parametrize(CASES)
def test_activation(case, dtype, variant):
    check(case, dtype, variant)
