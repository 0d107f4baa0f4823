# SPDX-License-Identifier: Apache-2.0
"""The version of everything that a record of the index depends on."""

from __future__ import annotations

import functools
import hashlib
import os

import torch

from .. import environment
from .target import Target

# The tools do not decide what an operator becomes.
_LEFT_OUT = ("tools", "__pycache__")


@functools.cache
def package_fingerprint() -> str:
    """A hash of the package's Python sources and of its extension."""
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    digest = hashlib.sha256()
    for directory, subdirectories, files in os.walk(root):
        subdirectories[:] = sorted(name for name in subdirectories if name not in _LEFT_OUT)
        for name in sorted(files):
            if name.endswith(".py"):
                _add(digest, os.path.relpath(os.path.join(directory, name), root), os.path.join(directory, name))
    extension = _extension_path()
    if extension is not None:
        _add(digest, "_C", extension)
    return digest.hexdigest()


def _add(digest: hashlib._Hash, name: str, path: str) -> None:
    with open(path, "rb") as file:
        content = file.read()
    digest.update(name.encode() + b"\0" + len(content).to_bytes(8, "little") + content)


def _extension_path() -> str | None:
    from .. import _C

    return getattr(_C, "__file__", None)


def index_version(target: Target) -> str:
    """Changes whenever a record made before could be wrong now."""
    return "\n".join(
        [
            package_fingerprint(),
            str(torch.__version__),
            *(f"{label}={value.decode()}" for label, value in target.key_parts()),
            ",".join(sorted(target.kernels)),
            environment.get("NEURON_CC_FLAGS"),
            str(environment.get("NEURON_COMPILER_OPT_LEVEL")),
        ]
    )
