# SPDX-License-Identifier: Apache-2.0
"""Loggers of the package, at the level that TORCH_NEURONX_LOG_LEVEL asks for."""

from __future__ import annotations

import logging

from . import environment

_LEVELS = (logging.ERROR, logging.WARNING, logging.INFO, logging.DEBUG)


def logger(name: str) -> logging.Logger:
    """The logger `name`, a child of "torch_neuronx"."""
    root = logging.getLogger("torch_neuronx")
    if root.level == logging.NOTSET:
        root.setLevel(_LEVELS[environment.get("TORCH_NEURONX_LOG_LEVEL")])
    return logging.getLogger(name)
