# SPDX-License-Identifier: Apache-2.0
"""Streams and events. All streams of a device feed one queue, so work runs in the order it was given."""

from __future__ import annotations

from typing import Any

import torch

from .. import _C
from .device import Device, device_index

_DEVICE_TYPE = torch._C._autograd.DeviceType.PrivateUse1.value


class Stream(torch.Stream):
    """A stream of `device` (None: of the current one). Priorities are accepted; the queue keeps its order.

    `Stream(stream_id=..., device_index=..., device_type=...)` names an existing one.
    """

    def __new__(cls, device: Device = None, priority: int = 0, **existing: int) -> Stream:
        if existing:
            self = super().__new__(cls, priority=priority, **existing)
        else:
            self = super().__new__(cls, device=torch.device("neuron", device_index(device)), priority=priority)
        return self

    def __init__(self, device: Device = None, priority: int = 0, **existing: int) -> None:
        self.priority = priority

    def record_event(self, event: torch.Event | None = None) -> torch.Event:
        """Records `event` (None: a new one) behind the work given so far, and returns it."""
        if event is None:
            event = Event()
        event.record(self)
        return event

    def __repr__(self) -> str:
        return f"<torch.neuron.Stream device={self.device} stream_id={self.stream_id}>"


class Event(torch.Event):
    """A place in the work of a device. With `enable_timing`, `elapsed_time` gives the milliseconds of device
    time between two of them. `blocking` and `interprocess` are accepted; an event stays in its process."""

    def __new__(cls, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> Event:
        return super().__new__(cls, device=torch.device("neuron"), enable_timing=enable_timing, blocking=blocking)

    def __init__(self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> None:
        if interprocess:
            raise NotImplementedError("neuron events cannot be shared between processes")

    def elapsed_time(self, end_event: torch.Event) -> float:
        """Milliseconds of device time from this event to `end_event`. Raises RuntimeError unless both were
        created with `enable_timing`, were recorded, and are done."""
        return _C.elapsed_ms(self.event_id, end_event.event_id)

    def __repr__(self) -> str:
        return f"<torch.neuron.Event device={self.device} event_id={self.event_id:#x}>"


def _as_stream(stream: torch.Stream) -> Stream:
    return Stream(stream_id=stream.stream_id, device_index=stream.device_index, device_type=stream.device_type)


def current_stream(device: Device = None) -> Stream:
    """The stream that this thread gives work to on `device`."""
    return _as_stream(torch._C._accelerator_getStream(device_index(device)))


def default_stream(device: Device = None) -> Stream:
    """The stream that every thread begins with."""
    return Stream(stream_id=0, device_index=device_index(device), device_type=_DEVICE_TYPE)


def set_stream(stream: torch.Stream | None) -> None:
    """Makes `stream` the current one of its device, for this thread; its device becomes the current one."""
    if stream is not None:
        torch._C._accelerator_setStream(stream)


class StreamContext:
    """Context manager: gives work to `stream` within. None changes nothing."""

    def __init__(self, stream: torch.Stream | None) -> None:
        self.stream = stream

    def __enter__(self) -> torch.Stream | None:
        if self.stream is not None:
            self._device_before = torch._C._accelerator_getDeviceIndex()
            self._stream_before = torch._C._accelerator_getStream(self.stream.device_index)
            set_stream(self.stream)
        return self.stream

    def __exit__(self, *exception: Any) -> None:
        if self.stream is not None:
            set_stream(self._stream_before)
            torch._C._accelerator_setDeviceIndex(self._device_before)


def stream(stream: torch.Stream | None) -> StreamContext:
    return StreamContext(stream)
