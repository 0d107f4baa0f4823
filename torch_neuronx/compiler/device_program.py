# SPDX-License-Identifier: Apache-2.0
"""Programs that launches may name before their NEFF is there: it is compiled, or read from the cache, meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import NamedTuple

from ..stablehlo import Program
from . import workers
from .compile import CompiledNeff, Kind, load, submit
from .errors import CompilationError

# What a launch takes at least. A graph is worth waking a thread for.
_LEAST_US: dict[Kind, float] = {"eager": 8, "graph": 50}
_BYTES_PER_US = 8e3


class DeviceProgram(NamedTuple):
    """number: the extension's name for it. neff: done when the program can run; its exception is a CompilationError."""

    number: int
    neff: Future[CompiledNeff]


def estimate_us(program: Program, kind: Kind) -> float:
    """A first guess of the run time, from the memory that is touched; the extension measures from then on."""
    return _LEAST_US[kind] + program.touched_bytes / _BYTES_PER_US


def start(
    program: Program, name: str, estimate: float, on_compiled: Callable[[CompiledNeff], None], *, kind: Kind
) -> DeviceProgram:
    """Hands `program` to the compiler. name: for errors. on_compiled: called on the thread that has compiled it."""
    from .. import _C

    number, device = _C.new_program(name, estimate, is_graph=kind == "graph"), _C.current_device()
    done: Future[CompiledNeff] = Future()

    def compiled(future: Future[CompiledNeff]) -> None:
        error = future.exception()
        if error is not None:
            _C.program_failed(number, str(error) or repr(error))
            done.set_exception(error)
            return
        neff = future.result()
        _C.program_ready(number, neff.data)
        _C.preload_program(number, device)
        on_compiled(neff)
        done.set_result(neff)

    submit(program, kind=kind).add_done_callback(compiled)
    return DeviceProgram(number, done)


def recall(key: str, name: str, estimate: float, *, kind: Kind) -> DeviceProgram | None:
    """The program of a NEFF that was compiled before; None when it is gone."""
    from .. import _C

    neff = load(key)
    if neff is None:
        return None
    number, device = _C.new_program(name, estimate, is_graph=kind == "graph"), _C.current_device()
    done: Future[CompiledNeff] = Future()

    def load_model() -> None:
        _C.program_ready(number, neff.data)
        _C.preload_program(number, device)
        done.set_result(neff)

    def abandon() -> None:
        _C.program_failed(number, "the process ends")
        done.set_exception(CompilationError("the process ended before the program was loaded"))

    # Beside the thread that drives the core: it has the programs before this one to run.
    workers.submit(workers.Job(load_model, abandon))
    return DeviceProgram(number, done)
