# SPDX-License-Identifier: Apache-2.0
"""Arguments as PyTorch's meta kernels want them."""

from __future__ import annotations

from typing import Any

import torch


def meta_of(value: Any) -> Any:
    """An argument with its tensors replaced by meta tensors of the same layout."""
    if isinstance(value, torch.Tensor):
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
    if isinstance(value, (list, tuple)):
        return [meta_of(v) for v in value]
    return value
