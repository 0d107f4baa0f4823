# SPDX-License-Identifier: Apache-2.0
"""Programs saved for people: those that failed to compile, and all of them on request."""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Mapping
from typing import Any

from .. import environment
from ..log import logger
from ..stablehlo import Program
from .cache import write_atomically
from .directory import UntrustedError, make_directory

_log = logger(__name__)


def save(
    program: Program, key: str, description: dict[str, Any], files: Mapping[str, bytes] | None = None
) -> str | None:
    """Saves `program.mlir` (with locations), `description.json` and the given files.

    Returns the path of the program, in a directory of its own under `<model name>/rank<number>`; None when the
    disk refuses.
    """
    name = _file_name(str(description.get("operator", "program")))
    try:
        directory = _root()
        for part in (_file_name(str(description.get("model", ""))), f"rank{environment.rank()}", f"{name}-{key[:16]}"):
            directory = os.path.join(directory, part)
            make_directory(directory)
        path = os.path.join(directory, "program.mlir")
        write_atomically(path, program.located_text.encode())
        write_atomically(
            os.path.join(directory, "description.json"), json.dumps(description, indent=2, default=str).encode()
        )
        _write(directory, files or {})
        return path
    except (OSError, UntrustedError) as failure:
        _log.warning("the program %s could not be saved: %s", name, failure)
        return None


def add(program_path: str, files: Mapping[str, bytes]) -> None:
    """Saves further files beside a program that `save` has saved."""
    try:
        _write(os.path.dirname(program_path), files)
    except OSError as failure:
        _log.warning("%s could not be saved beside %s: %s", ", ".join(files), program_path, failure)


def _write(directory: str, files: Mapping[str, bytes]) -> None:
    for file, content in files.items():
        write_atomically(os.path.join(directory, file), content)


def _file_name(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.]+", "_", text).strip("_.")[:80] or "unnamed"


def _root() -> str:
    """TORCH_NEURONX_DEBUG_DIR; another directory where that one is somebody else's."""
    root = os.path.abspath(environment.get("TORCH_NEURONX_DEBUG_DIR"))
    try:
        make_directory(root)
        return root
    except UntrustedError as error:
        _log.warning("%s", error)
        return tempfile.mkdtemp(prefix="neuron-backend-")
