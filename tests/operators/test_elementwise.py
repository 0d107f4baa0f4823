# SPDX-License-Identifier: Apache-2.0
"""Functions of one tensor, element by element."""

from __future__ import annotations

import pytest
import torch
from case import (
    ALL,
    BOOL,
    COMPLEX,
    FLOATS,
    INTEGERS,
    LAYOUTS,
    NUMBERS,
    SHAPES,
    Case,
    check,
    parametrize,
    sample,
    special,
)

aten = torch.ops.aten


def unary(name: str, dtypes=FLOATS, low: float | None = None, high: float = 4, layouts=(), **options) -> Case:
    """Of special values, or of numbers between low and high."""

    def make(dtype):
        # Enough elements for vectorized loops, which are other code in the compiler.
        values = torch.cat([special(dtype), special(dtype, seed=1)], 1)
        x = values if low is None else sample(6, 16, dtype=dtype, low=low, high=high)
        return (x,), {}

    packet, _, overload = name.partition(".")
    return Case(getattr(getattr(aten, packet), overload or "default"), make, dtypes, layouts=layouts, **options)


FLOATS_AND_INT = (*FLOATS, torch.int32)

CASES = [
    unary("abs", (*NUMBERS, torch.complex64), layouts=LAYOUTS, shapes=SHAPES),
    unary("neg", (*NUMBERS, torch.complex64)),
    unary("sign", ALL),
    unary("sgn", (torch.float32, torch.int64, torch.complex64)),
    *(unary(name, NUMBERS) for name in ("ceil", "floor", "trunc", "round")),
    unary("frac", FLOATS),
    *(
        unary(name, FLOATS_AND_INT)
        for name in ("exp", "expm1", "exp2", "sqrt", "rsqrt", "log", "log2", "log10", "log1p")
    ),
    *(unary(name, FLOATS_AND_INT) for name in ("sin", "cos", "tanh", "sinh", "cosh", "atan", "asinh", "erf", "erfc")),
    unary("tan", FLOATS_AND_INT, low=-1.2, high=1.2),
    unary("exp", COMPLEX, low=-1, id="complex"),
    unary("sqrt", COMPLEX, low=-1, id="complex"),
    unary("asin", FLOATS, low=-1.2, high=1.2),
    unary("acos", FLOATS, low=-1.2, high=1.2),
    unary("acosh", FLOATS, low=0.5, high=5),
    unary("atanh", FLOATS, low=-1.2, high=1.2),
    unary("erfinv", (torch.float32, torch.float64), low=-1, high=1),
    unary("lgamma", (torch.float32, torch.float64), low=0.1, high=9),
    unary("digamma", (torch.float32, torch.float64), low=0.1, high=9),
    unary("reciprocal", FLOATS_AND_INT),
    unary("sinc", FLOATS, low=-4),
    unary("deg2rad"),
    unary("rad2deg"),
    unary("special_entr", (torch.float32, torch.float64)),
    unary("special_erfcx", (torch.float32, torch.float64), low=-3, high=30),
    unary("special_log_ndtr", (torch.float32, torch.float64), low=-30, high=8),
    unary("special_ndtri", (torch.float32, torch.float64), low=0.01, high=0.99),
    *(
        unary(name, (torch.float32, torch.float64), low=-20, high=20)
        for name in ("i0", "special_i0e", "special_i1", "special_i1e")
    ),
    *(unary(name, ALL) for name in ("isnan", "isinf", "signbit")),
    *(unary(name, (torch.float32, torch.int64)) for name in ("isposinf", "isneginf")),
    unary("logical_not", ALL),
    unary("bitwise_not", (*INTEGERS, *BOOL)),
    unary("frexp.Tensor", FLOATS, mutable=False),
    unary("angle", (torch.float32, torch.int64, torch.complex64)),
    Case(aten.logit.default, lambda d: ((sample(6, 8, dtype=d, low=-0.2, high=1.2),), {}), FLOATS[:2], layouts=()),
    Case(
        aten.logit.default,
        lambda d: ((sample(6, 8, dtype=d, low=-0.2, high=1.2), 0.1), {}),
        FLOATS[:2],
        "eps",
        layouts=(),
    ),
    Case(aten.round.decimals, lambda d: ((special(d),), {"decimals": 2}), FLOATS[:2], layouts=()),
    Case(aten.round.decimals, lambda d: ((special(d),), {"decimals": -1}), FLOATS[:2], "tens", layouts=()),
    Case(aten.nan_to_num.default, lambda d: ((special(d),), {}), FLOATS_AND_INT, layouts=()),
    Case(aten.nan_to_num.default, lambda d: ((special(d), 1.5, 2.0, -3.0), {}), FLOATS, "values", layouts=()),
]


@parametrize(CASES)
def test_elementwise(case, dtype, variant):
    check(case, dtype, variant)


COMPLEX_CASES = [
    Case(
        aten.complex.default,
        lambda d: ((sample(3, 4, dtype=d), sample(4, dtype=d, seed=1)), {}),
        FLOATS[:2],
        shapes=SHAPES,
    ),
    Case(aten.polar.default, lambda d: ((sample(3, 4, dtype=d), sample(4, dtype=d, seed=1)), {}), FLOATS[:2]),
    Case(aten.conj_physical.default, lambda d: ((sample(3, 4, dtype=d),), {}), COMPLEX),
]


@parametrize(COMPLEX_CASES)
def test_complex(case, dtype, variant):
    check(case, dtype, variant)


@pytest.mark.parametrize("function", [torch.real, torch.imag, torch.view_as_real, torch.conj], ids=lambda f: f.__name__)
def test_complex_view(function):
    x = sample(3, 4, dtype=torch.complex64)
    torch.testing.assert_close((function(x.to("neuron")) * 2).cpu(), function(x) * 2)


def test_view_as_complex():
    x = sample(3, 4, 2)
    torch.testing.assert_close((torch.view_as_complex(x.to("neuron")) * 1j).cpu(), torch.view_as_complex(x) * 1j)
