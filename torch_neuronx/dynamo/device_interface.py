# SPDX-License-Identifier: Apache-2.0
"""What Dynamo asks a device: which one is current, its streams and events, whether it has bfloat16."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch._dynamo.device_interface import (
    DeviceInterface,
    get_interface_for_device,
    register_interface_for_device,
)

from .. import neuron
from ..neuron.device import Device


def _exchange_device(device: int) -> int:
    """Makes device `device` current (a negative one changes nothing); returns the one before."""
    before = neuron.current_device()
    neuron.set_device(device)
    return before


class NeuronInterface(DeviceInterface):
    """Dynamo's view of torch.neuron."""

    device = neuron.device
    Event = neuron.Event
    Stream = neuron.Stream

    class Worker:
        """What a process that compiles for another one asks."""

        set_device = staticmethod(neuron.set_device)
        current_device = staticmethod(neuron.current_device)
        get_device_properties = staticmethod(neuron.get_device_properties)

    current_device = staticmethod(neuron.current_device)
    set_device = staticmethod(neuron.set_device)
    device_count = staticmethod(neuron.device_count)
    is_available = staticmethod(neuron.is_available)
    stream = staticmethod(neuron.stream)
    current_stream = staticmethod(neuron.current_stream)
    set_stream = staticmethod(neuron.set_stream)
    synchronize = staticmethod(neuron.synchronize)
    exchange_device = staticmethod(_exchange_device)
    maybe_exchange_device = staticmethod(_exchange_device)
    memory_allocated = staticmethod(neuron.memory_allocated)

    @staticmethod
    def _set_stream_by_id(stream_id: int, device_index: int, device_type: int) -> None:
        neuron.set_stream(neuron.Stream(stream_id=stream_id, device_index=device_index, device_type=device_type))

    @staticmethod
    def get_raw_stream(device_idx: int) -> int:
        return neuron.current_stream(device_idx).stream_id

    @staticmethod
    def get_compute_capability(device: Any = None) -> str:
        return neuron.get_device_name(device)

    @staticmethod
    def is_bf16_supported(including_emulation: bool = False) -> bool:
        return neuron.is_bf16_supported()


# What Dynamo traces instead of functions of torch.neuron: it knows streams, and the functions of torch.accelerator.


def _stream(stream: torch.Stream | None) -> Any:
    return contextlib.nullcontext() if stream is None else stream


def _current_stream(device: Device = None) -> torch.Stream:
    return torch.accelerator.current_stream() if device is None else torch.accelerator.current_stream(device)


def _synchronize(device: Device = None) -> None:
    if device is None:
        torch.accelerator.synchronize()
    else:
        torch.accelerator.synchronize(device)


_TRACED_INSTEAD: dict[Any, Any] = {
    neuron.stream: _stream,
    neuron.current_stream: _current_stream,
    neuron.synchronize: _synchronize,
}


def register() -> None:
    """Tells Dynamo about the device, and about each index of it, as it does for its own devices."""
    for function, traced in _TRACED_INSTEAD.items():
        torch.compiler.substitute_in_graph(function)(traced)
    get_interface_for_device("cpu")  # Dynamo's own registrations come first, else they undo this one
    register_interface_for_device("neuron", NeuronInterface)
    for index in range(torch.neuron.device_count()):  # type: ignore[attr-defined]
        register_interface_for_device(f"neuron:{index}", NeuronInterface)
