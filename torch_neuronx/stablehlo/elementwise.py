# SPDX-License-Identifier: Apache-2.0
"""Elementwise StableHLO operations, with NumPy broadcasting of their operands."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from .builder import Builder, Value

_UNARY = (
    "abs cbrt ceil cosine count_leading_zeros exponential exponential_minus_one floor log log_plus_one logistic negate "
    "not popcnt round_nearest_afz round_nearest_even rsqrt sign sine sqrt tan tanh"
).split()
_BINARY = (
    "add and atan2 divide maximum minimum multiply or power remainder shift_left shift_right_arithmetic "
    "shift_right_logical subtract xor"
).split()
# Functions of the CHLO dialect, which StableHLO consumers legalize themselves.
_CHLO_UNARY = "acos acosh asin asinh atanh bessel_i1e cosh digamma erf erfc erf_inv lgamma sinh".split()
_CHLO_BINARY = "next_after polygamma zeta".split()


class Elementwise:
    """Mixin of `Builder`. Operands of one operation must share a dtype; shapes broadcast.

    A Python number takes the dtype of the other operand.
    """

    if TYPE_CHECKING:
        # The operations in the tables above become methods at the end of this file.
        def __getattr__(self, name: str) -> Callable[..., Value]: ...

    def broadcast_to(self: Builder, x: Value, shape: Sequence[int]) -> Value:
        """`x` with trailing dimensions aligned to `shape`, size-1 dimensions repeated."""
        shape = tuple(shape)
        if x.shape == shape:
            return x
        lead = len(shape) - x.ndim
        kept = [d for d in range(x.ndim) if x.shape[d] == shape[lead + d]]
        for d in range(x.ndim):
            if x.shape[d] not in (1, shape[lead + d]):
                raise ValueError(f"cannot broadcast {x.shape} to {shape}")
        squeezed = self.reshape(x, [x.shape[d] for d in kept])
        return self.broadcast_in_dim(squeezed, shape, [lead + d for d in kept])

    def broadcast(self: Builder, *values: Value) -> list[Value]:
        """All values at their common shape."""
        shape = torch.broadcast_shapes(*(v.shape for v in values))
        return [self.broadcast_to(v, shape) for v in values]

    def _unary(self: Builder, name: str, x: Value) -> Value:
        real = name == "abs" and x.dtype.is_complex
        return self.op(name, [x], x.shape, x.dtype.to_real() if real else x.dtype)

    def _pair(self: Builder, x: Value | float, y: Value | float) -> tuple[Value, Value]:
        """Both as values; a number takes the dtype of the other one."""
        if isinstance(x, (int, float, complex)):
            assert not isinstance(y, (int, float, complex)), "one operand must be a value"
            return self.constant(x, y.dtype), y
        return x, self.constant(y, x.dtype) if isinstance(y, (int, float, complex)) else y

    def _binary(self: Builder, name: str, x: Value | float, y: Value | float) -> Value:
        x, y = self._pair(x, y)
        if x.dtype != y.dtype:
            raise TypeError(f"stablehlo.{name} needs operands of one dtype, got {x!r} and {y!r}")
        x, y = self.broadcast(x, y)
        return self.op(name, [x, y], x.shape, x.dtype)

    def compare(self: Builder, x: Value | float, y: Value | float, direction: str) -> Value:
        """direction: EQ NE LT LE GT GE. The result has dtype bool."""
        x, y = self._pair(x, y)
        if x.dtype != y.dtype:
            raise TypeError(f"stablehlo.compare needs operands of one dtype, got {x!r} and {y!r}")
        x, y = self.broadcast(x, y)
        attributes = f"comparison_direction = #stablehlo<comparison_direction {direction}>"
        return self.op("compare", [x, y], x.shape, torch.bool, attributes)

    def select(self: Builder, condition: Value, on_true: Value | float, on_false: Value | float) -> Value:
        on_true, on_false = self._pair(on_true, on_false)
        condition, on_true, on_false = self.broadcast(condition, on_true, on_false)
        return self.op("select", [condition, on_true, on_false], on_true.shape, on_true.dtype)

    def clamp(self: Builder, low: Value | float, x: Value, high: Value | float) -> Value:
        """minimum(maximum(x, low), high); NaN stays NaN."""
        return self.minimum(self.maximum(x, low), high)

    def is_nan(self: Builder, x: Value) -> Value:
        return self.compare(x, x, "NE")

    def convert(self: Builder, x: Value, dtype: torch.dtype) -> Value:
        """PyTorch's cast: to bool means `!= 0`; complex to real drops the imaginary part."""
        if x.dtype == dtype:
            return x
        if dtype == torch.bool:
            return self.compare(x, 0, "NE")
        if x.dtype.is_complex and not dtype.is_complex:
            return self.convert(self.real(x), dtype)
        if x.dtype.is_floating_point and not dtype.is_floating_point and not dtype.is_complex and dtype.itemsize < 4:
            # Through int32, whose low bits remain, as processors do it; the direct conversion saturates.
            x = self.op("convert", [x], x.shape, torch.int32)
        result = self.op("convert", [x], x.shape, dtype)
        self.converted[result.name] = x
        return result

    def is_converted(self: Builder, x: Value) -> bool:
        """Whether `x` is a cast of something, which the compiler folds into what reads it."""
        return x.name in self.converted

    def bitcast_convert(self: Builder, x: Value, dtype: torch.dtype, shape: Sequence[int] | None = None) -> Value:
        return self.op("bitcast_convert", [x], x.shape if shape is None else shape, dtype)

    def real(self: Builder, x: Value) -> Value:
        return self.op("real", [x], x.shape, x.dtype.to_real())

    def imag(self: Builder, x: Value) -> Value:
        return self.op("imag", [x], x.shape, x.dtype.to_real())

    def complex(self: Builder, real: Value, imag: Value) -> Value:
        return self.op("complex", [real, imag], real.shape, real.dtype.to_complex())

    def is_finite(self: Builder, x: Value) -> Value:
        return self.op("is_finite", [x], x.shape, torch.bool)

    def is_negative(self: Builder, x: Value) -> Value:
        """The sign bit of a float (so -0.0 and negative NaN count), `x < 0` of an integer."""
        if x.dtype.is_floating_point:
            bits = {2: torch.int16, 4: torch.int32, 8: torch.int64}[x.dtype.itemsize]
            x = self.bitcast_convert(x, bits)
        return self.compare(x, 0, "LT")

    def _chlo(self: Builder, name: str, *operands: Value) -> Value:
        first, *others = self.broadcast(*operands)
        return self.results(f"chlo.{name}", [first, *others], [(first.shape, first.dtype)])[0]


def _unary_method(name: str):
    return lambda self, x: self._unary(name, x)


def _binary_method(name: str):
    return lambda self, x, y: self._binary(name, x, y)


# Python keywords get a trailing underscore: and_, or_, not_.
for _name in _UNARY:
    setattr(Elementwise, _name if _name != "not" else "not_", _unary_method(_name))
for _name in _BINARY:
    setattr(Elementwise, _name if _name not in ("and", "or") else _name + "_", _binary_method(_name))
for _name in _CHLO_UNARY + _CHLO_BINARY:
    setattr(Elementwise, _name, (lambda name: lambda self, *operands: self._chlo(name, *operands))(_name))
