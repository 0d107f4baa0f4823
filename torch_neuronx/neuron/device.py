# SPDX-License-Identifier: Apache-2.0
"""Devices: a NeuronCore each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from .. import _C

Device = torch.device | str | int | None


@dataclass(frozen=True)
class DeviceProperties:
    """name: "trn2", "trn3" ...; total_memory: bytes; logical_core_size: physical cores per logical core;
    is_software: a software NeuronCore."""

    name: str
    total_memory: int
    logical_core_size: int
    is_software: bool


def device_index(device: Device, optional: bool = True) -> int:
    """The index that `device` means. None, and "neuron" without an index, mean the current device;
    with `optional=False` they raise ValueError. Another device type raises ValueError."""
    if isinstance(device, int):
        return device
    if device is not None:
        device = torch.device(device)
        if device.type != "neuron":
            raise ValueError(f"Expected a neuron device, but got: {device}")
        if device.index is not None:
            return device.index
    if not optional:
        raise ValueError(f"Expected a device with an index, such as 'neuron:0' or 0, but got: {device}")
    return _C.current_device()


def is_available() -> bool:
    """Whether there is a core to run on. Never raises; `init()` says why not."""
    return _C.device_count() > 0


def device_count() -> int:
    """How many cores this process may use. Starts nothing, so forking afterwards is fine."""
    return _C.device_count()


def is_initialized() -> bool:
    """Whether the runtime has been started."""
    return _C.is_initialized()


def init() -> None:
    """Starts the runtime, which the first use of a device does otherwise.

    Raises RuntimeError, with the reason and the remedy, when there is no usable core."""
    _C.init()
    _C.ensure_operators_registered()


_lazy_init = init


def _is_in_bad_fork() -> bool:
    return _C.is_in_bad_fork()


def current_device() -> int:
    """Index of the current device of this thread; at first the rank of the process on its machine."""
    return _C.current_device()


def set_device(device: Device) -> None:
    """Makes `device` the current one of this thread. A negative index changes nothing."""
    index = device_index(device)
    if index >= 0:
        _C.set_device(index)


def synchronize(device: Device = None) -> None:
    """Waits for all work of `device`. Raises the first error that asynchronous work met."""
    _C.synchronize(device_index(device))


def get_device_name(device: Device = None) -> str:
    return get_device_properties(device).name


def get_device_properties(device: Device = None) -> DeviceProperties:
    """Raises RuntimeError when there is no such device."""
    from .. import utils

    _, total_memory = _C.memory_info(device_index(device))
    return DeviceProperties(
        name=utils.get_platform_target(),
        total_memory=total_memory,
        logical_core_size=utils.get_logical_neuron_cores(),
        is_software=_C.runtime_is_software(),
    )


class device:
    """Context manager: makes a device the current one within. None changes nothing."""

    def __init__(self, device: Device) -> None:
        self.idx = -1 if device is None else device_index(device)
        self.prev_idx = -1

    def __enter__(self) -> None:
        self.prev_idx = _C.exchange_device(self.idx)

    def __exit__(self, *exception: Any) -> None:
        _C.exchange_device(self.prev_idx)


class device_of(device):
    """The same for the device of a tensor or storage; one that lies elsewhere changes nothing."""

    def __init__(self, obj: Any) -> None:
        super().__init__(obj.device.index if obj.device.type == "neuron" else None)
