# SPDX-License-Identifier: Apache-2.0
"""The version of everything that a record of the index depends on."""

from __future__ import annotations

import hashlib
import os
import time

import torch

from .. import environment
from .index import Index
from .target import Target

# The tools do not decide what an operator becomes.
_LEFT_OUT = ("tools", "__pycache__")


# A file that was changed so short a time ago may change again without another time stamp.
_SETTLED_NS = 2 * 10**9


def package_fingerprint(remembered: Index) -> str:
    """A hash of the package's Python sources and of its extension: the same on every machine.

    remembered: where hashes are kept by the files' times and sizes, since reading the files takes longer than
    everything else that a process with a filled cache does before its first operator.
    """
    files = _package_files()
    state = _state(files)
    if state is not None and (record := remembered.find(state)):
        return record["fingerprint"]
    digest = hashlib.sha256()
    for name, path in files:
        _add(digest, name, path)
    if state is not None and _state(files) == state:
        remembered.add(state, {"fingerprint": digest.hexdigest()})
    return digest.hexdigest()


def _package_files() -> list[tuple[str, str]]:
    """Name within the package and path of every file that decides what an operator becomes."""
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    found: list[tuple[str, str]] = []
    for directory, subdirectories, files in os.walk(root):
        subdirectories[:] = sorted(name for name in subdirectories if name not in _LEFT_OUT)
        for name in sorted(files):
            if name.endswith(".py"):
                path = os.path.join(directory, name)
                found.append((os.path.relpath(path, root), path))
    extension = _extension_path()
    if extension is not None:
        found.append(("_C", extension))
    return found


def _state(files: list[tuple[str, str]]) -> bytes | None:
    """Differs when a file is another one or was written since; None if one has just been."""
    parts = []
    latest = time.time_ns() - _SETTLED_NS
    for _, path in files:
        status = os.stat(path)
        if max(status.st_mtime_ns, status.st_ctime_ns) > latest:
            return None
        parts.append(f"{path} {status.st_ino} {status.st_size} {status.st_mtime_ns} {status.st_ctime_ns}")
    return "\n".join(parts).encode()


def _add(digest: hashlib._Hash, name: str, path: str) -> None:
    with open(path, "rb") as file:
        content = file.read()
    digest.update(name.encode() + b"\0" + len(content).to_bytes(8, "little") + content)


def _extension_path() -> str | None:
    from .. import _C

    return getattr(_C, "__file__", None)


def index_version(target: Target, remembered: Index) -> str:
    """Changes whenever a record made before could be wrong now. remembered: see `package_fingerprint`."""
    return "\n".join(
        [
            package_fingerprint(remembered),
            str(torch.__version__),
            *(f"{label}={value.decode()}" for label, value in target.key_parts()),
            ",".join(sorted(target.kernels)),
            environment.get("NEURON_CC_FLAGS"),
            str(environment.get("NEURON_COMPILER_OPT_LEVEL")),
        ]
    )
