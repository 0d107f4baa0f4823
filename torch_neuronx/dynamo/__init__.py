# SPDX-License-Identifier: Apache-2.0
"""torch.compile(backend="neuron"): Dynamo's graphs, through AOTAutograd, as one program each.

PyTorch loads this package by its entry point (`torch_dynamo_backends`) the first time that the backend is named.
"""

from __future__ import annotations

import torch

from .backend import neuron
from .compile_callbacks import ask_for_callbacks
from .device_interface import register as _register_device_interface

__all__ = ["neuron"]

# Dynamo imports them in the middle of its first trace otherwise.
if torch.distributed.is_available():
    import torch.distributed.tensor.experimental
import torch.export._trace

_register_device_interface()
ask_for_callbacks()
