# SPDX-License-Identifier: Apache-2.0
"""Programs saved for people: those that failed to compile, and all of them on request."""

from __future__ import annotations

import json
import os
import re
import tempfile
from typing import Any

from .. import environment
from ..log import logger
from ..stablehlo import Program
from .cache import write_atomically
from .directory import UntrustedError, make_directory

_log = logger(__name__)


def save(program: Program, key: str, description: dict[str, Any], error: str | None = None) -> str | None:
    """Saves `program.mlir` (with locations), `description.json` and, for a failure, `error.txt`.

    Returns the path of the program in a directory of its own, or None when the disk refuses.
    """
    name = re.sub(r"[^A-Za-z0-9_.]+", "_", str(description.get("operator", "program"))).strip("_") or "program"
    try:
        directory = os.path.join(_root(), f"{name[:80]}-{key[:16]}")
        make_directory(directory)
        path = os.path.join(directory, "program.mlir")
        write_atomically(path, program.located_text.encode())
        write_atomically(
            os.path.join(directory, "description.json"), json.dumps(description, indent=2, default=str).encode()
        )
        if error is not None:
            write_atomically(os.path.join(directory, "error.txt"), error.encode(errors="replace"))
        return path
    except (OSError, UntrustedError) as failure:
        _log.warning("the program %s could not be saved: %s", name, failure)
        return None


def _root() -> str:
    """TORCH_NEURONX_DEBUG_DIR; another directory where that one is somebody else's."""
    root = os.path.abspath(environment.get("TORCH_NEURONX_DEBUG_DIR"))
    try:
        make_directory(root)
        return root
    except UntrustedError as error:
        _log.warning("%s", error)
        return tempfile.mkdtemp(prefix="neuron-backend-")
