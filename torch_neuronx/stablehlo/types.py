# SPDX-License-Identifier: Apache-2.0
"""Element types: PyTorch dtypes and their StableHLO spelling."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence

import torch

ELEMENT_TYPES: dict[torch.dtype, str] = {
    torch.float64: "f64",
    torch.float32: "f32",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.float8_e4m3fn: "f8E4M3FN",
    torch.float8_e5m2: "f8E5M2",
    torch.int64: "i64",
    torch.int32: "i32",
    torch.int16: "i16",
    torch.int8: "i8",
    torch.uint64: "ui64",
    torch.uint32: "ui32",
    torch.uint16: "ui16",
    torch.uint8: "ui8",
    torch.bool: "i1",
    torch.complex64: "complex<f32>",
    torch.complex128: "complex<f64>",
}


def element_type(dtype: torch.dtype) -> str:
    """StableHLO spelling of `dtype`; raises TypeError for a dtype the device does not have."""
    try:
        return ELEMENT_TYPES[dtype]
    except KeyError:
        raise TypeError(f"the neuron device has no element type for {dtype}") from None


def tensor_type(shape: Sequence[int], dtype: torch.dtype) -> str:
    """For example `tensor<2x3xf32>`."""
    return "tensor<" + "".join(f"{d}x" for d in shape) + element_type(dtype) + ">"


# Integer patterns of infinities and NaN, which MLIR has no decimal spelling for.
_SPECIAL_BITS = {
    torch.float64: ("0x7FF0000000000000", "0xFFF0000000000000", "0x7FF8000000000000"),
    torch.float32: ("0x7F800000", "0xFF800000", "0x7FC00000"),
    torch.float16: ("0x7C00", "0xFC00", "0x7E00"),
    torch.bfloat16: ("0x7F80", "0xFF80", "0x7FC0"),
}


def literal(value: bool | int | float | complex, dtype: torch.dtype) -> str:
    """MLIR spelling of one element of `dtype`.

    Integers wrap to the width of `dtype` as a C cast does; floats keep every bit that a
    double holds, so that the rounding to `dtype` is the compiler's single rounding.
    """
    if dtype.is_complex:
        part = torch.float64 if dtype == torch.complex128 else torch.float32
        value = complex(value)
        return f"({literal(value.real, part)}, {literal(value.imag, part)})"
    if dtype == torch.bool:
        return "true" if value else "false"
    assert not isinstance(value, complex), f"{value} is no {dtype}"
    if not dtype.is_floating_point:
        bits = torch.iinfo(dtype).bits
        wrapped = int(value) & ((1 << bits) - 1)
        if dtype.is_signed and wrapped >> (bits - 1):
            wrapped -= 1 << bits
        return str(wrapped)
    number = float(value)
    if dtype == torch.float32 and math.isfinite(number):
        try:
            number = struct.unpack("f", struct.pack("f", number))[0]
        except OverflowError:
            number = math.copysign(math.inf, number)
    if math.isfinite(number):
        text = repr(number)
        mantissa, exponent, power = text.partition("e")
        mantissa = mantissa if "." in mantissa else mantissa + ".0"
        return mantissa + exponent + power
    positive, negative, nan = _SPECIAL_BITS[dtype]
    if math.isnan(number):
        return nan
    return positive if number > 0 else negative
