# SPDX-License-Identifier: Apache-2.0
"""Device memory: what the caching allocator holds, and what the core has left."""

from __future__ import annotations

from typing import Any

import torch

from .. import _C
from .device import Device, device_index

__all__ = [
    "empty_cache",
    "max_memory_allocated",
    "max_memory_reserved",
    "mem_get_info",
    "memory_allocated",
    "memory_reserved",
    "memory_stats",
    "memory_summary",
    "reset_accumulated_memory_stats",
    "reset_peak_memory_stats",
]

_BYTE_STATISTICS = ("allocated_bytes", "reserved_bytes", "active_bytes")
_KINDS = ("current", "peak", "allocated", "freed")


def memory_stats(device: Device = None) -> dict[str, Any]:
    """Statistics of the allocator.

    `allocated_bytes` (in tensors), `reserved_bytes` (with the cached blocks) and `active_bytes` are dicts of
    `current`, `peak`, `allocated` and `freed` bytes. `num_alloc_retries`, `num_ooms`, `num_tensor_frees` and
    `allocation_requests` are counts. The flat keys of `torch.accelerator.memory_stats` are there too.
    """
    flat = torch.accelerator.memory_stats(device_index(device))
    stats: dict[str, Any] = dict(flat)
    for name in _BYTE_STATISTICS:
        stats[name] = {kind: flat.get(f"{name}.all.{kind}", 0) for kind in _KINDS}
    for name in ("num_alloc_retries", "num_ooms"):
        stats[name] = flat.get(name, 0)
    stats["num_tensor_frees"] = flat.get("allocation.all.freed", 0)
    stats["allocation_requests"] = flat.get("allocation.all.allocated", 0)
    return stats


def memory_allocated(device: Device = None) -> int:
    """Bytes that tensors hold now (rounded up to the sizes of their blocks)."""
    return torch.accelerator.memory_allocated(device_index(device))


def max_memory_allocated(device: Device = None) -> int:
    """The most bytes that tensors held since the start or `reset_peak_memory_stats`."""
    return torch.accelerator.max_memory_allocated(device_index(device))


def memory_reserved(device: Device = None) -> int:
    """Bytes that tensors hold, and freed blocks that are kept for the next ones."""
    return torch.accelerator.memory_reserved(device_index(device))


def max_memory_reserved(device: Device = None) -> int:
    return torch.accelerator.max_memory_reserved(device_index(device))


def reset_peak_memory_stats(device: Device = None) -> None:
    torch.accelerator.reset_peak_memory_stats(device_index(device))


def reset_accumulated_memory_stats(device: Device = None) -> None:
    torch.accelerator.reset_accumulated_memory_stats(device_index(device))


def mem_get_info(device: Device = None) -> tuple[int, int]:
    """Free and total bytes of the core; cached blocks count as free."""
    return _C.memory_info(device_index(device))


def empty_cache() -> None:
    """Waits for the cores, then gives the cached blocks back to them."""
    _C.empty_cache()


def memory_summary(device: Device = None, abbreviated: bool = False) -> str:
    """The statistics as a table, and, unless `abbreviated`, the largest tensors with the operators that
    made them."""
    index = device_index(device)
    stats = memory_stats(index)
    free, total = mem_get_info(index)
    mebi = 1 << 20
    lines = [
        f"neuron:{index}: {total / mebi:.1f} MiB, {free / mebi:.1f} MiB free",
        f"{'MiB':<18}" + "".join(f"{kind:>14}" for kind in _KINDS),
    ]
    for name in _BYTE_STATISTICS:
        lines.append(f"{name:<18}" + "".join(f"{stats[name][kind] / mebi:>14.1f}" for kind in _KINDS))
    for name in ("allocation_requests", "num_tensor_frees", "num_alloc_retries", "num_ooms"):
        lines.append(f"{name:<22}{stats[name]:>10}")
    if not abbreviated:
        lines += ["largest tensors:", _C.describe_live_blocks(index, 10).rstrip("\n")]
    return "\n".join(lines) + "\n"
