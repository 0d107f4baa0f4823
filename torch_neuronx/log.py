# SPDX-License-Identifier: Apache-2.0
"""Loggers of the package, at the level that TORCH_NEURONX_LOG_LEVEL asks for."""

from __future__ import annotations

import logging
import threading

from . import environment

_LEVELS = (logging.ERROR, logging.WARNING, logging.INFO, logging.DEBUG)


class _Stderr(logging.StreamHandler):
    """For a program that has set up no logging: Python itself would show it warnings and errors only."""

    def emit(self, record: logging.LogRecord) -> None:
        if not logging.getLogger().handlers:
            super().emit(record)


class OncePer:
    """Warnings that are given once: `if once.first(subject): ...`. Threads may ask."""

    def __init__(self) -> None:
        self._seen: set[str] = set()
        self._mutex = threading.Lock()

    def first(self, subject: str) -> bool:
        """Whether `subject` is asked for the first time."""
        with self._mutex:
            if subject in self._seen:
                return False
            self._seen.add(subject)
            return True


def logger(name: str) -> logging.Logger:
    """The logger `name`, a child of "torch_neuronx"."""
    root = logging.getLogger("torch_neuronx")
    if root.level == logging.NOTSET:
        level = _LEVELS[environment.get("TORCH_NEURONX_LOG_LEVEL")]
        root.setLevel(level)
        if level < logging.WARNING:
            root.addHandler(_Stderr())
    return logging.getLogger(name)
