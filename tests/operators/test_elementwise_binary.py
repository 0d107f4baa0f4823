# SPDX-License-Identifier: Apache-2.0
"""Functions of two and three tensors, element by element, with broadcasting and type promotion."""

from __future__ import annotations

import pytest
import torch
from case import (
    ALL,
    BOOL,
    FLOATS,
    INTEGERS,
    LAYOUTS,
    NUMBERS,
    SHAPES,
    Case,
    check,
    compare,
    parametrize,
    sample,
    special,
)

import torch_neuronx

aten = torch.ops.aten
FLOATS_AND_INT = (*FLOATS[:3], torch.int64)
# The kinds that operators tell apart; every dtype is in the cases of add and mul.
KINDS = (torch.float32, torch.int64, torch.bfloat16, torch.uint8)
KINDS_AND_BOOL = (*KINDS, torch.bool)
INTEGERS_AND_BOOL = (torch.int64, torch.uint8, torch.bool)


def overload(name: str):
    packet, _, rest = name.partition(".")
    return getattr(getattr(aten, packet), rest or "default")


def nonzero(x: torch.Tensor) -> torch.Tensor:
    """Integers without zero: dividing by it is an error on the CPU and undefined on the device."""
    return x if x.dtype.is_floating_point else torch.where(x == 0, torch.ones_like(x), x)


def binary(name: str, dtypes=KINDS, divisor: bool = False, layouts=(), **kwargs) -> Case:
    """Of two tensors of special values."""

    def make(dtype):
        y = special(dtype, seed=1)
        return (special(dtype), nonzero(y) if divisor else y), kwargs

    label = "-".join(str(v) for v in kwargs.values())
    return Case(overload(name), make, dtypes, label, layouts=layouts)


def scalar(name: str, number: bool | float, dtypes=KINDS, **kwargs) -> Case:
    return Case(overload(name), lambda d: ((special(d), number), kwargs), dtypes, str(number), layouts=())


def scalar_first(name: str, number: float, dtypes=KINDS, low: float = -4) -> Case:
    return Case(
        overload(name),
        lambda d: ((number, nonzero(sample(6, 8, dtype=d, low=low))), {}),
        dtypes,
        str(number),
        layouts=(),
    )


CASES = [
    binary("add.Tensor", (*ALL, torch.complex64), layouts=LAYOUTS)._replace(shapes=SHAPES),
    binary("add.Tensor", (torch.float32, torch.int64), alpha=3),
    binary("sub.Tensor", (*KINDS, torch.complex64)),
    binary("sub.Tensor", (torch.float32, torch.int64), alpha=2),
    binary("rsub.Tensor", FLOATS_AND_INT),
    binary("mul.Tensor", (*NUMBERS, *BOOL), layouts=LAYOUTS),
    binary("div.Tensor", (*FLOATS, torch.int32)),
    *(
        binary("div.Tensor_mode", KINDS if mode else FLOATS, divisor=True, rounding_mode=mode)
        for mode in (None, "floor")
    ),
    # In float16 PyTorch rounds the quotient before it truncates it.
    binary("div.Tensor_mode", (torch.float32, torch.float64, torch.int64), divisor=True, rounding_mode="trunc"),
    binary("floor_divide", KINDS, divisor=True),
    binary("remainder.Tensor", KINDS, divisor=True),
    binary("fmod.Tensor", KINDS, divisor=True),
    binary("pow.Tensor_Tensor", FLOATS),
    *(binary(f"{name}.Tensor", KINDS_AND_BOOL) for name in ("eq", "ne", "lt", "le", "gt", "ge")),
    *(binary(name, (torch.float32, torch.int64, torch.bool)) for name in ("logical_and", "logical_or", "logical_xor")),
    *(binary(f"bitwise_{name}.Tensor", INTEGERS_AND_BOOL) for name in ("and", "or", "xor")),
    *(binary(name, KINDS_AND_BOOL) for name in ("maximum", "minimum", "fmax", "fmin")),
    binary("copysign.Tensor", FLOATS),
    binary("heaviside", FLOATS_AND_INT),
    binary("nextafter", (torch.float64, torch.float32)),
    binary("atan2", FLOATS),
    binary("hypot", FLOATS),
    binary("xlogy.Tensor", FLOATS),
    binary("special_xlog1py", FLOATS),
    binary("logaddexp", FLOATS),
    binary("logaddexp2", FLOATS),
    Case(
        aten.gcd.default,
        lambda d: ((sample(6, 8, dtype=d, low=-90, high=90), sample(6, 8, dtype=d, low=-60, high=60, seed=1)), {}),
        INTEGERS[::2],
    ),
    Case(
        aten.lcm.default,
        lambda d: ((sample(6, 8, dtype=d, low=-9, high=9), sample(6, 8, dtype=d, low=-9, high=9, seed=1)), {}),
        INTEGERS[::2],
    ),
    Case(
        aten.pow.Tensor_Tensor,
        lambda d: ((sample(6, 8, dtype=d), sample(6, 8, dtype=d, low=0, high=9, seed=1)), {}),
        INTEGERS[:3],
        "whole",
    ),
    *(
        Case(
            overload(name),
            lambda d: ((sample(6, 8, dtype=d, low=-90, high=90), sample(6, 8, dtype=d, low=0, high=7, seed=1)), {}),
            INTEGERS[::2],
            layouts=(),
        )
        for name in ("bitwise_left_shift.Tensor", "bitwise_right_shift.Tensor")
    ),
    *(scalar(f"{name}.Tensor", 2.5, (*FLOATS, torch.int64)) for name in ("add", "mul", "div")),
    scalar("add.Scalar", 3),
    scalar("sub.Scalar", 3),
    scalar("rsub.Scalar", 3),
    scalar("mul.Scalar", -2),
    scalar("div.Scalar", 3),
    scalar("div.Scalar_mode", -3, rounding_mode="floor"),
    scalar("remainder.Scalar", 3),
    scalar("remainder.Scalar", -2.5, FLOATS),
    scalar("fmod.Scalar", 3),
    scalar_first("remainder.Scalar_Tensor", 7),
    *(scalar("pow.Tensor_Scalar", n, FLOATS_AND_INT) for n in (0, 1, 2, 3, 7)),
    *(scalar("pow.Tensor_Scalar", n, FLOATS[:3]) for n in (-2, -1, -0.5, 0.5, 1.7)),
    scalar_first("pow.Scalar", 2, low=0),
    *(scalar(f"{name}.Scalar", 1, KINDS_AND_BOOL) for name in ("eq", "ne", "lt", "le", "gt", "ge")),
    scalar("gt.Scalar", 0.5, FLOATS_AND_INT),
    *(scalar(f"bitwise_{name}.Scalar", 5, INTEGERS[::2]) for name in ("and", "or", "xor")),
    scalar("bitwise_left_shift.Tensor_Scalar", 2, INTEGERS[:3]),
    scalar("bitwise_right_shift.Tensor_Scalar", 2, INTEGERS[:3]),
    scalar("copysign.Scalar", -1.0, FLOATS),
    scalar("xlogy.Scalar_Other", 2.0, FLOATS),
    scalar_first("xlogy.Scalar_Self", 2.0, FLOATS, low=0),
    scalar("clamp_min", 0.5, FLOATS_AND_INT),
    scalar("clamp_max", 2, FLOATS_AND_INT),
]


@parametrize(CASES)
def test_binary(case, dtype, variant):
    check(case, dtype, variant)


def ternary(name: str, dtypes=FLOATS, layouts=(), **kwargs) -> Case:
    label = "-".join(str(v) for v in kwargs.values())
    return Case(
        overload(name),
        lambda d: ((special(d), special(d, seed=1), special(d, seed=2)), kwargs),
        dtypes,
        label,
        layouts=layouts,
    )


TERNARY_CASES = [
    Case(aten.clamp.default, lambda d: ((special(d), -1, 2), {}), KINDS[:3], layouts=LAYOUTS, shapes=SHAPES),
    Case(aten.clamp.default, lambda d: ((special(d), None, 2.5), {}), FLOATS_AND_INT, "max", layouts=()),
    ternary("clamp.Tensor", FLOATS_AND_INT),
    Case(aten.clamp.Tensor, lambda d: ((special(d), None, special(d, seed=1)), {}), FLOATS_AND_INT, "max", layouts=()),
    Case(
        aten.where.self,
        lambda d: ((sample(6, 8, dtype=torch.bool), special(d), special(d, seed=1)), {}),
        KINDS_AND_BOOL,
        shapes=SHAPES,
    ),
    Case(
        aten.where.self,
        lambda d: ((sample(6, 1, dtype=torch.bool), special(d), torch.tensor(1.5)), {}),
        FLOATS_AND_INT,
        "0-dim",
    ),
    ternary("lerp.Tensor", FLOATS[:2], layouts=LAYOUTS),
    *(
        Case(aten.lerp.Scalar, lambda d, w=w: ((special(d), special(d, seed=1), w), {}), FLOATS, str(w), layouts=())
        for w in (0.3, 0.7)
    ),
    ternary("addcmul", FLOATS_AND_INT, layouts=LAYOUTS),
    ternary("addcmul", FLOATS[:2], value=-0.5),
    ternary("addcdiv", FLOATS[:2], layouts=LAYOUTS),
    ternary("addcdiv", FLOATS[:2], value=-0.5),
]


@parametrize(TERNARY_CASES)
def test_ternary(case, dtype, variant):
    check(case, dtype, variant)


PROMOTIONS = [
    (sample(3, 4), sample(4, dtype=torch.int64)),
    (sample(3, 4, dtype=torch.bfloat16), sample(3, 1)),
    (sample(3, 4, dtype=torch.bfloat16), torch.tensor(2.5)),
    (sample(3, 4, dtype=torch.int32), torch.tensor(2, dtype=torch.int64)),
    (sample(3, 4, dtype=torch.int32), torch.tensor(2.5, dtype=torch.float64)),
    (sample(3, 4, dtype=torch.uint8), sample(3, 4, dtype=torch.int8)),
    (sample(3, 4, dtype=torch.bool), sample(3, 4, dtype=torch.int16)),
    (sample(0, 4), sample(4)),
    (sample(2, 1, 3), sample(4, 1)),
]


@pytest.mark.parametrize(
    "op", [torch.add, torch.mul, torch.true_divide, torch.maximum, torch.lt, torch.eq], ids=lambda f: f.__name__
)
@pytest.mark.parametrize(
    "pair", PROMOTIONS, ids=lambda p: "-".join(f"{x.dtype}{list(x.shape)}".removeprefix("torch.") for x in p)
)
def test_promotion(op, pair):
    torch_neuronx.clear_op_tracking()
    x, y = pair
    compare(op(x.to("neuron"), y.to("neuron")), op(x, y))
    # A 0-dim CPU tensor is an operand too.
    number = torch.tensor(2) if y.ndim else y
    compare(op(x.to("neuron"), number), op(x, number))
    assert torch_neuronx.get_fallback_ops() == []


@pytest.mark.parametrize("exponent", [64, 65, 100])
def test_large_integer_exponent(exponent):
    x = torch.tensor([0, 1, -1, 2, 3, 5])
    compare(x.to("neuron").pow(exponent), x.pow(exponent))
    compare(x.to("neuron").pow(torch.full((6,), exponent).to("neuron")), x.pow(torch.full((6,), exponent)))


def test_negative_integer_exponent():
    x, y = torch.tensor([0, 1, -1, -1, 2]), torch.tensor([-1, -2, -2, -3, -1])
    compare(x.to("neuron").pow(y.to("neuron")), x.pow(y))
