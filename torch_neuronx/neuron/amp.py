# SPDX-License-Identifier: Apache-2.0
"""Automatic mixed precision: `torch.autocast("neuron")`."""

from __future__ import annotations

import torch

__all__ = ["autocast", "get_amp_supported_dtype", "is_bf16_supported"]


def get_amp_supported_dtype() -> list[torch.dtype]:
    return [torch.bfloat16, torch.float16]


def is_bf16_supported(including_emulation: bool = True) -> bool:
    return True


class autocast(torch.autocast):
    """`torch.autocast` for this device; bfloat16 by default."""

    def __init__(self, enabled: bool = True, dtype: torch.dtype = torch.bfloat16, cache_enabled: bool = True) -> None:
        super().__init__("neuron", enabled=enabled, dtype=dtype, cache_enabled=cache_enabled)
