# SPDX-License-Identifier: Apache-2.0
"""One NEFF cache and one cache of PyTorch's for the session: tests neither see nor leave anything in the user's."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import textwrap

import pytest


@pytest.fixture(scope="session", autouse=True)
def neff_cache_dir(tmp_path_factory):
    """A fresh directory, shared by the workers of pytest-xdist and by subprocesses."""
    root = tmp_path_factory.getbasetemp()
    if os.environ.get("PYTEST_XDIST_WORKER"):
        root = root.parent
    folder = root / "neff_cache"
    folder.mkdir(mode=0o700, exist_ok=True)
    os.environ["TORCH_NEURONX_NEFF_CACHE_DIR"] = str(folder)
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(root / "torch_cache")
    return folder


class Messages(logging.Handler):
    """What the package logs."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())

    def count(self, text: str) -> int:
        """How many messages contain `text`."""
        return sum(text in line for line in self.lines)


@pytest.fixture
def fresh_dynamo():
    """Nothing is compiled before the test, nor after it."""
    import torch

    torch._dynamo.reset()
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


@pytest.fixture
def messages():
    """The package's log messages of level 2 and above during the test."""
    logger, handler = logging.getLogger("torch_neuronx"), Messages()
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield handler
    logger.setLevel(level)
    logger.removeHandler(handler)


@pytest.fixture
def run_python():
    """Runs a program in a fresh interpreter: `run_python(code, NAME="value", OTHER=None)`; a variable that
    is None is unset. Returns the completed process; `check=False` allows it to fail."""

    def run(code: str, check: bool = True, timeout: float = 120, **environment: str | None):
        env = dict(os.environ)
        for name, value in environment.items():
            if value is None:
                env.pop(name, None)
            else:
                env[name] = value
        result = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(code)], env=env, capture_output=True, text=True, timeout=timeout
        )
        if check:
            assert result.returncode == 0, result.stderr
        return result

    return run
