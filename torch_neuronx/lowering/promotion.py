# SPDX-License-Identifier: Apache-2.0
"""Type promotion, and the dtypes that arithmetic is done in."""

from __future__ import annotations

import torch

from ..stablehlo import Value

_HALF = (torch.bfloat16, torch.float16)


def opmath(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which PyTorch computes an operator whose result is `dtype`: float32 for half types."""
    return torch.float32 if dtype in _HALF else dtype


def result_type(*operands: Value | bool | int | float | complex) -> torch.dtype:
    """torch.result_type of any number of operands; Python numbers and wrapped values count as numbers."""
    # The three priorities of PyTorch: tensors with dimensions, 0-dim tensors, numbers.
    groups: list[torch.dtype | None] = [None, None, None]
    for x in operands:
        if isinstance(x, Value) and not x.wrapped:
            level, dtype = (0 if x.ndim else 1), x.dtype
        else:
            level, dtype = 2, _number_type(x)
        known = groups[level]
        groups[level] = dtype if known is None else torch.promote_types(known, dtype)
    result = _combine(groups[0], _combine(groups[1], groups[2]))
    assert result is not None, "result_type needs an operand"
    return result


def _number_type(x: Value | bool | int | float | complex) -> torch.dtype:
    dtype = x.dtype if isinstance(x, Value) else None
    if isinstance(x, complex) or (dtype is not None and dtype.is_complex):
        return torch.get_default_dtype().to_complex()
    if isinstance(x, float) or (dtype is not None and dtype.is_floating_point):
        return torch.get_default_dtype()
    if isinstance(x, bool) or dtype == torch.bool:
        return torch.bool
    return torch.int64


def _combine(higher: torch.dtype | None, lower: torch.dtype | None) -> torch.dtype | None:
    """The type of `higher` unless `lower` is of a wider kind (bool, integer, float, complex)."""
    if higher is None or lower is None:
        return lower if higher is None else higher
    if higher.is_complex:
        return higher
    if higher.is_floating_point:
        return higher.to_complex() if lower.is_complex else higher
    if higher == torch.bool or lower.is_floating_point or lower.is_complex:
        return torch.promote_types(higher, lower)
    return higher
