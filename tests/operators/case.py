# SPDX-License-Identifier: Apache-2.0
"""Operator tests as data: a case names an overload and makes its arguments; `check` compares the device with the CPU.

CASES = [Case(aten.softmax.int, lambda dtype: ((sample(3, 4, dtype=dtype), -1), {}), HALF_AND_FLOAT)]

@parametrize(CASES)
def test_softmax(case, dtype, variant):
    check(case, dtype, variant)
"""

from __future__ import annotations

import math
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pytest
import torch
from torch._ops import OpOverload

import torch_neuronx
from torch_neuronx.eager.variants import Variant, variants

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
COMPLEX = (torch.complex64,)
BOOL = (torch.bool,)
NUMBERS = FLOATS + INTEGERS
ALL = NUMBERS + BOOL

# How the operands lie in memory, "functional" being contiguous.
LAYOUTS = ("transposed", "sliced", "offset", "expanded")
# What happens to the operands' shapes before the call; for operators that treat elements alike.
SHAPES = ("empty", "scalar")


class Case(NamedTuple):
    """An overload and arguments for it.

    make: dtype -> (args, kwargs), of CPU tensors that are the same at every call.
    dtypes: the first one is also tested in every layout, the first two in place and with out=.
    layouts, shapes: which variants make sense for these arguments.
    mutable: whether in-place and out= forms are derived from the schema.
    strides: whether the result's strides must be those of the CPU.
    """

    op: OpOverload
    make: Callable[[torch.dtype], tuple[tuple, dict[str, Any]]]
    dtypes: Sequence[torch.dtype] = (torch.float32,)
    id: str = ""
    layouts: Sequence[str] = LAYOUTS
    shapes: Sequence[str] = ()
    mutable: bool = True
    strides: bool = True
    rtol: float | None = None
    atol: float | None = None

    @property
    def name(self) -> str:
        label = str(self.op).removeprefix("aten.").removesuffix(".default")
        return f"{label}-{self.id}" if self.id else label


def parametrize(cases: Sequence[Case]) -> pytest.MarkDecorator:
    """Every case in all its dtypes; the other variants in the first dtype or two."""
    params = []
    for case in cases:
        for index, dtype in enumerate(case.dtypes):
            chosen = ["functional"]
            if index == 0:
                chosen += [*case.layouts, *case.shapes] if _has_tensors(case, dtype) else []
            if index < 2 and case.mutable:
                chosen += _mutating_variants(case, dtype)
            for variant in chosen:
                name = f"{case.name}-{str(dtype).removeprefix('torch.')}-{variant}"
                params.append(pytest.param(case, dtype, variant, id=name))
    return pytest.mark.parametrize("case, dtype, variant", params)


def check(case: Case, dtype: torch.dtype, variant: str = "functional") -> None:
    """Runs one variant on the CPU and on the device, and compares values, dtypes and strides.

    Fails when the operator fell back to the CPU.
    """
    args, kwargs = case.make(dtype)
    if variant in SHAPES:
        args, kwargs = _map(args, _RESHAPES[variant]), _map(kwargs, _RESHAPES[variant])
    layout = variant if variant in LAYOUTS else "contiguous"
    torch_neuronx.clear_op_tracking()
    if variant == "in_place":
        expected, actual = (_in_place(case, args, kwargs, device) for device in ("cpu", "neuron"))
    elif variant == "out":
        expected, actual = (_out(case, args, kwargs, device) for device in ("cpu", "neuron"))
    else:
        expected, actual = (_functional(case.op, args, kwargs, layout, device) for device in ("cpu", "neuron"))
    compare(actual, expected, rtol=case.rtol, atol=case.atol, strides=case.strides)
    assert torch_neuronx.get_fallback_ops() == []


def compare(actual: Any, expected: Any, strides: bool = True, **tolerances: float | None) -> None:
    """Results of the device against those of the CPU; NaN equals NaN."""
    actual, expected = _flatten(actual), _flatten(expected)
    assert len(actual) == len(expected)
    for got, want in zip(actual, expected, strict=True):
        if want is None or got is None:
            assert got is want
            continue
        assert got.device.type == "neuron"
        torch.testing.assert_close(got.cpu(), want, equal_nan=True, **tolerances)
        if strides and want.numel():
            assert got.stride() == want.stride()


# -- arguments ---------------------------------------------------------------------------------------


def sample(
    *shape: int, dtype: torch.dtype = torch.float32, seed: int = 0, low: float = -4, high: float = 4
) -> torch.Tensor:
    """Numbers between low and high, the same at every call."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(shape, generator=generator, dtype=torch.float64) * (high - low) + low
    if dtype == torch.bool:
        return x > (low + high) / 2
    if dtype.is_complex:
        imag = torch.rand(shape, generator=generator, dtype=torch.float64) * (high - low) + low
        return torch.complex(x, imag).to(dtype)
    if not dtype.is_signed:
        x = x.abs()
    return x.to(dtype)


def special(dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    """Shape (6, 8): ordinary numbers, signed zeros, infinities and NaN in an order that depends on the seed."""
    x = sample(48, dtype=dtype, seed=seed)
    if dtype.is_floating_point:
        odd = torch.tensor([0.0, -0.0, math.inf, -math.inf, math.nan, 1.0, -1.0, 0.5, 2.5, -1.5, 30.0, -30.0, 1e-3])
        x[: len(odd)] = odd.to(dtype)
    elif dtype != torch.bool and not dtype.is_complex:
        x[:4] = torch.tensor([0, 1, torch.iinfo(dtype).max, torch.iinfo(dtype).min], dtype=dtype)
    order = torch.randperm(48, generator=torch.Generator().manual_seed(seed + 100))
    return x[order].reshape(6, 8)


# -- calls ---------------------------------------------------------------------------------------------


def _functional(op: OpOverload, args: tuple, kwargs: dict, layout: str, device: str) -> Any:
    args, kwargs = (_map(x, lambda t: _place(t, layout, device)[0]) for x in (args, kwargs))
    if _makes_tensors(op):
        kwargs = {**kwargs, "device": device}
    return op(*args, **kwargs)


def _makes_tensors(op: OpOverload) -> bool:
    """Whether the device is an argument and no operand decides it."""
    arguments = op._schema.arguments
    return any(a.name == "device" for a in arguments) and not any("Tensor" in str(a.type) for a in arguments)


def _in_place(case: Case, args: tuple, kwargs: dict, device: str) -> list[torch.Tensor]:
    """The updated argument, contiguous, and once more as a view with gaps; then the whole of that view's memory."""
    variant = _variant(case.op, updated=True)
    assert variant is not None
    results = []
    for layout in ("contiguous", "sliced"):
        bound = dict(zip((a.name for a in case.op._schema.arguments), args, strict=False)) | kwargs
        bound = {name: _map(x, lambda t: _place(t, "contiguous", device)[0]) for name, x in bound.items()}
        for name in variant.updated:
            original = args[[a.name for a in case.op._schema.arguments].index(name)]
            bound[name], memory = _place(original, layout, device)
            results.append(memory)
        variant.overload(**bound)
        results.extend(bound[name] for name in variant.updated)
    return results


def _out(case: Case, args: tuple, kwargs: dict, device: str) -> list[torch.Tensor]:
    """With out= tensors of reversed memory order. On the CPU: the functional result in that order."""
    variant = _variant(case.op, updated=False)
    assert variant is not None
    expected = _flatten(case.op(*args, **kwargs))
    outs = [_place(x if device == "cpu" else torch.zeros_like(x), "transposed", device)[0] for x in expected]
    if device != "cpu":
        args, kwargs = (_map(x, lambda t: _place(t, "contiguous", device)[0]) for x in (args, kwargs))
        variant.overload(*args, **kwargs, **dict(zip(variant.written, outs, strict=True)))
    return outs


def _variant(op: OpOverload, updated: bool) -> Variant | None:
    for variant in variants(op):
        if variant.mutates and bool(variant.updated) == updated:
            return variant
    return None


def _mutating_variants(case: Case, dtype: torch.dtype) -> list[str]:
    """Which of in_place and out the schema and the result's type allow."""
    if not _has_tensors(case, dtype):
        return []
    args, kwargs = case.make(dtype)
    results = _flatten(case.op(*args, **kwargs))
    chosen = []
    in_place = _variant(case.op, updated=True)
    if in_place is not None and len(in_place.updated) == 1 and len(results) == 1:
        position = [a.name for a in case.op._schema.arguments].index(in_place.updated[0])
        target = args[position]
        if target.shape == results[0].shape and torch.can_cast(results[0].dtype, target.dtype):
            chosen.append("in_place")
    if _variant(case.op, updated=False) is not None:
        chosen.append("out")
    return chosen


def _has_tensors(case: Case, dtype: torch.dtype) -> bool:
    args, kwargs = case.make(dtype)
    return any(isinstance(x, torch.Tensor) for x in _flatten([*args, *kwargs.values()]))


# -- memory ----------------------------------------------------------------------------------------------


def _place(x: torch.Tensor, layout: str, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """A copy of `x` in a layout, on a device; and the tensor that has all of its memory."""
    if layout == "transposed" and x.ndim > 1:
        memory = x.permute(*reversed(range(x.ndim))).contiguous().to(device, copy=True)
        return memory.permute(*reversed(range(x.ndim))), memory
    if layout == "sliced" and x.ndim > 0:
        memory = torch.stack([x, torch.zeros_like(x)], -1).flatten(-2).to(device)
        return memory[..., ::2], memory
    if layout == "offset":
        memory = torch.cat([torch.zeros(1, dtype=x.dtype), x.flatten()]).to(device)
        return memory[1:].view(x.shape), memory
    if layout == "expanded" and x.ndim > 0 and x.shape[0] > 1:
        memory = x[:1].contiguous().to(device, copy=True)
        return memory.expand(x.shape), memory
    memory = x.contiguous().to(device, copy=True)
    return memory, memory


_RESHAPES = {
    "empty": lambda x: x.narrow(-1, 0, 0) if x.ndim and x.shape[-1] > 1 else x,
    "scalar": lambda x: x.flatten()[:1].reshape(()),
}


def _map(x: Any, function: Callable[[torch.Tensor], Any]) -> Any:
    if isinstance(x, torch.Tensor):
        return function(x)
    if isinstance(x, (list, tuple)):
        return type(x)(_map(e, function) for e in x)
    if isinstance(x, dict):
        return {name: _map(e, function) for name, e in x.items()}
    return x


def _flatten(x: Any) -> list:
    if isinstance(x, (list, tuple)):
        return [e for item in x for e in _flatten(item)]
    return [x]


def check_on_lesser_processor(setting: str, file: str, *tests: str) -> None:
    """Runs tests of `file` in a process that uses less of the processor, as the environment variable says."""
    if platform.machine() != "x86_64":
        pytest.skip("the settings are of x86-64")
    name, value = setting.split("=")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-p", "no:cacheprovider"]
        + [f"{file}::{test}" for test in tests],
        env={**os.environ, name: value},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
