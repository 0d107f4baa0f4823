# SPDX-License-Identifier: Apache-2.0
"""The PyTorch device `neuron`. `import torch` loads this package by itself (entry point `torch.backends`)."""

from __future__ import annotations

import importlib
from typing import Any


def _autoload() -> None:
    """Called by `import torch`, after it has imported this module: that registers the device, so nothing
    is left to do. (Where this module is what imports torch, its last line is still to come.)"""


import torch  # noqa: E402

_registered = False

# Public names that live in a module which is imported only when asked for, and such modules.
_LAZY = dict.fromkeys(("get_executed_ops", "get_fallback_ops", "clear_op_tracking"), "eager")
_LAZY_MODULES = ("compiler", "eager", "metrics", "neuron_dynamo_backend", "utils")

__all__ = [*_LAZY, *_LAZY_MODULES]


def _check_torch_version() -> None:
    from ._build import TORCH_VERSION

    built, found = (version.split(".")[:2] for version in (TORCH_VERSION, torch.__version__))
    if built != found:
        raise ImportError(
            f"torch_neuronx was built against torch {TORCH_VERSION}, but this is torch {torch.__version__}: its "
            f"device interfaces are another. Install torch {'.'.join(built)}.*, or build torch_neuronx again "
            "(`pip install --force-reinstall --no-build-isolation torch-neuronx`; in a checkout `make setup`)."
        )


def _register() -> None:
    global _registered
    if _registered:
        return
    _registered = True
    _check_torch_version()

    import atexit

    from . import _C

    torch.utils.rename_privateuse1_backend("neuron")
    from . import neuron

    torch._register_device_module("neuron", neuron)
    quantized = [torch.quint8, torch.quint4x2, torch.quint2x4, torch.qint32, torch.qint8]
    torch.utils.generate_methods_for_privateuse1_backend(
        for_tensor=True,
        for_module=True,
        for_packed_sequence=True,
        for_storage=True,
        unsupported_dtype=quantized,
    )
    # The core multiplies bfloat16 natively; PyTorch's default for a new device is float16.
    torch.set_autocast_dtype("neuron", torch.bfloat16)
    from . import cache_artifacts  # noqa: F401 - registers the kind of artifact

    if torch.distributed.is_available():
        from . import distributed

        distributed.register()
    # No thread may run a program while the libraries that it uses are torn down. What waits for other
    # ranks is given up first (the last one registered runs first).
    atexit.register(_C.drain_all)
    atexit.register(_C.shutdown_process_groups)


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(f"{__name__}.{_LAZY[name]}"), name)
    if name in _LAZY_MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


_register()

from .neuron.memory import *  # noqa: E402, F403
from .neuron.memory import __all__ as _memory_names  # noqa: E402

__all__ += _memory_names
