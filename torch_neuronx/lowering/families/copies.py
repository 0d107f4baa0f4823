# SPDX-License-Identifier: Apache-2.0
"""Casts and copies. Inside a program a copy is its operand."""

from __future__ import annotations

import torch

from ...stablehlo import Builder, Value
from ..pointwise import finish
from ..registry import lowers

aten = torch.ops.aten


@lowers(
    aten.clone.default,
    aten.contiguous.default,
    aten.resolve_conj.default,
    aten.resolve_neg.default,
)
def _identity(b: Builder, x: Value) -> Value:
    """Memory layout is the launch's concern, not the program's."""
    return x


@lowers(aten._to_copy.default)
def _to_copy(b: Builder, x: Value) -> Value:
    return finish(b, x)


@lowers(torch.ops.prims.convert_element_type.default)
def _convert_element_type(b: Builder, x: Value, dtype: torch.dtype) -> Value:
    return b.convert(x, dtype)


@lowers(aten.copy.default)
def _copy(b: Builder, x: Value, source: Value, non_blocking: bool) -> Value:
    return finish(b, source)
