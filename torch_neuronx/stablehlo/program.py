# SPDX-License-Identifier: Apache-2.0
"""A finished program: StableHLO text and the description of its operands and results."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch


@dataclass(frozen=True)
class TensorSpec:
    """Shape and dtype of one operand or result, in memory order (row-major)."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    def __str__(self) -> str:
        """ "float32[3, 4]" """
        return f"{str(self.dtype).removeprefix('torch.')}{list(self.shape)}"


@dataclass(frozen=True)
class Program:
    """What a compile driver takes. It knows nothing of operators.

    `text` is canonical: no locations, so that the same computation from another line has the
    same key. `located_text` is the same program with locations, for compiler messages.
    """

    text: str
    located_text: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    metadata: dict[str, object] = field(default_factory=dict)

    @property
    def touched_bytes(self) -> int:
        """Size of all operands and results."""
        return sum(math.prod(spec.shape) * spec.dtype.itemsize for spec in (*self.inputs, *self.outputs))
