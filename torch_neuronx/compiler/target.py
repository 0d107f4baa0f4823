# SPDX-License-Identifier: Apache-2.0
"""What programs are compiled for, and by which compiler."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import os
import shutil
from dataclasses import dataclass

NEURONX_CC = "neuronx-cc"


@dataclass(frozen=True)
class Target:
    """Everything but the program and the flags that decides what a compile produces.

    name: "trn2" or "trn3".
    lnc: physical cores per logical core.
    software: the software NeuronCore; otherwise the vendor's compiler and runtime.
    compiler: identifies the compiler, so that another version has other cache keys.
    kernels: host kernels that a program may call by name.
    """

    name: str
    lnc: int
    software: bool
    compiler: str
    kernels: frozenset[str] = frozenset()

    def key_parts(self) -> list[tuple[str, bytes]]:
        return [
            ("target", self.name.encode()),
            ("logical core size", str(self.lnc).encode()),
            ("compiler", self.compiler.encode()),
        ]


@functools.cache
def current() -> Target:
    """The target of this process. Loads the runtime library, but uses no core."""
    from .. import _C, utils

    name, lnc = utils.get_platform_target(), utils.get_logical_neuron_cores()
    if _C.runtime_is_software():
        return Target(name, lnc, True, _C.compiler_fingerprint(), frozenset(_C.kernel_names()))
    return Target(name, lnc, False, neuronx_cc_fingerprint())


def neuronx_cc_fingerprint() -> str:
    """The version of neuronx-cc: of its Python package, or of the command that PATH finds."""
    try:
        return f"{NEURONX_CC} {importlib.metadata.version(NEURONX_CC)}"
    except importlib.metadata.PackageNotFoundError:
        pass
    command = shutil.which(NEURONX_CC)
    if command is None:
        return f"{NEURONX_CC} (not found)"
    with open(os.path.realpath(command), "rb") as file:
        return f"{NEURONX_CC} {hashlib.sha256(file.read()).hexdigest()}"
