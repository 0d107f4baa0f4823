# SPDX-License-Identifier: Apache-2.0
"""Questions about the platform, under the names that programs for Trainium ask them by."""

from __future__ import annotations

from . import _C, environment

__all__ = ["get_logical_neuron_cores", "get_platform_target", "is_sync_mode_enabled", "use_mlir_aten_ops"]


def get_logical_neuron_cores() -> int:
    """Physical cores per logical core (NEURON_LOGICAL_NC_CONFIG), as the compiler's `--lnc`."""
    return environment.get("NEURON_LOGICAL_NC_CONFIG")


def get_platform_target() -> str:
    """What programs are compiled for: "trn2", "trn3" ... Raises RuntimeError without a usable core."""
    return environment.get("NEURON_PLATFORM_TARGET_OVERRIDE") or _C.platform_target()


def is_sync_mode_enabled() -> bool:
    """Whether every launch is waited for (NEURON_LAUNCH_BLOCKING)."""
    return _C.launch_blocking()


def use_mlir_aten_ops() -> bool:
    """Whether operators are lowered to MLIR: always."""
    return True
