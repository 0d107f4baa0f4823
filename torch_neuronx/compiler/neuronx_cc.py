# SPDX-License-Identifier: Apache-2.0
"""The driver of the vendor's compiler: the command `neuronx-cc`, once per program."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import tempfile
import threading
from typing import Any

from .. import environment
from ..stablehlo import Program
from .errors import CompilerFailure
from .target import NEURONX_CC, Target

# What is kept of a long error output: its end says what went wrong.
_ERROR_CHARACTERS = 8000

_children: set[subprocess.Popen[str]] = set()
_children_mutex = threading.Lock()
_stopped = False


def flags(target: Target, optimize_level: int) -> str:
    """The arguments that decide the result; what NEURON_CC_FLAGS says is handed through as it is."""
    fixed = (
        f"--framework XLA --target {target.name} --lnc {target.lnc} -O{optimize_level} "
        "--model-type transformer --auto-cast=none"
    )
    return f"{fixed} {environment.get('NEURON_CC_FLAGS')}".strip()


def compile(program: Program, target: Target, optimize_level: int, metadata: dict[str, Any]) -> bytes:
    """StableHLO to the bytes of a NEFF. Raises CompilerFailure with the compiler's error output."""
    command = shutil.which(NEURONX_CC)
    if command is None:
        raise CompilerFailure(
            f"the command {NEURONX_CC} is not in PATH; install the Neuron compiler, or set "
            "TORCH_NEURONX_RUNTIME=software to run on the software NeuronCore"
        )
    with tempfile.TemporaryDirectory(prefix="neuronx-cc-") as directory:
        source, output = os.path.join(directory, "module.mlir"), os.path.join(directory, "module.neff")
        with open(source, "w", encoding="utf-8") as file:
            file.write(program.located_text)
        arguments = [command, "compile", source, *shlex.split(flags(target, optimize_level)), "--output", output]
        status, message = _run(arguments, directory)
        if status != 0:
            raise CompilerFailure(f"{NEURONX_CC} ended with status {status}:\n{message[-_ERROR_CHARACTERS:]}")
        try:
            with open(output, "rb") as file:
                return file.read()
        except FileNotFoundError:
            raise CompilerFailure(
                f"{NEURONX_CC} ended with status 0 and wrote no NEFF:\n{message[-_ERROR_CHARACTERS:]}"
            ) from None


def _run(arguments: list[str], directory: str) -> tuple[int, str]:
    """Runs the compiler in a process group of its own, so that its helpers can be stopped with it."""
    with _children_mutex:
        if _stopped:
            raise CompilerFailure("the process ends")
        process = subprocess.Popen(
            arguments,
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        _children.add(process)
    try:
        _, message = process.communicate()
        return process.returncode, message
    except BaseException:
        _kill(process)
        process.wait()
        raise
    finally:
        with _children_mutex:
            _children.discard(process)


def _kill(process: subprocess.Popen[str]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def stop_all() -> None:
    """Kills the compilers that still run and starts no more: the process ends."""
    global _stopped
    with _children_mutex:
        _stopped = True
        for process in _children:
            _kill(process)
