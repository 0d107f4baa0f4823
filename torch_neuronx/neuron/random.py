# SPDX-License-Identifier: Apache-2.0
"""Random numbers: each device has a default generator, whose state is a seed and an offset (16 bytes)."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from .. import _C
from .device import Device, current_device, device_count, device_index

__all__ = [
    "get_rng_state",
    "get_rng_state_all",
    "initial_seed",
    "manual_seed",
    "manual_seed_all",
    "seed",
    "seed_all",
    "set_rng_state",
    "set_rng_state_all",
]


def _generator(device: Device) -> torch.Generator:
    return _C.default_generator(device_index(device))


def get_rng_state(device: Device = "neuron") -> Tensor:
    """State of the default generator of `device`: a uint8 tensor on the CPU."""
    return _generator(device).get_state()


def get_rng_state_all() -> list[Tensor]:
    return [get_rng_state(index) for index in range(device_count())]


def set_rng_state(new_state: Tensor, device: Device = "neuron") -> None:
    _generator(device).set_state(new_state)


def set_rng_state_all(new_states: Iterable[Tensor]) -> None:
    for index, state in enumerate(new_states):
        set_rng_state(state, index)


def manual_seed(seed: int) -> None:
    """Seeds the generator of the current device. Does nothing without a device."""
    if device_count() > 0:
        _generator(current_device()).manual_seed(int(seed))


def manual_seed_all(seed: int) -> None:
    """Seeds the generators of all devices; `torch.manual_seed` calls it."""
    for index in range(device_count()):
        _generator(index).manual_seed(int(seed))


def seed() -> None:
    """Seeds the generator of the current device with a random number."""
    if device_count() > 0:
        _generator(current_device()).seed()


def seed_all() -> None:
    """Seeds the generators of all devices with one random number."""
    if device_count() > 0:
        manual_seed_all(_generator(0).seed())


def initial_seed() -> int:
    """The seed of the current device's generator."""
    return _generator(current_device()).initial_seed()
