# SPDX-License-Identifier: Apache-2.0
"""Program to NEFF: through the table of this process, the cache on disk, and the compiler."""

from __future__ import annotations

import functools
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Literal, NamedTuple

from .. import environment, metrics
from ..log import logger
from ..stablehlo import Program
from . import artifacts, neuronx_cc, software, workers
from .cache import NeffCache, Parts, describe_parts, key_of
from .errors import CompilationError, CompilerFailure
from .target import Target, current

_log = logger(__name__)

Kind = Literal["eager", "graph"]

# Part of every key: changed when the content of a NEFF changes its meaning.
_FORMAT = b"1"

_DEFAULT_OPTIMIZE_LEVEL: dict[Kind, int] = {"eager": 1, "graph": 2}

# Compiled programs kept in memory; the runtime holds its own copy of what is loaded.
_TABLE_BYTES = 256 << 20


class CompiledNeff(NamedTuple):
    """compile_seconds: 0 for a NEFF that was found."""

    key: str
    data: bytes
    compile_seconds: float = 0.0


@functools.cache
def neff_cache() -> NeffCache:
    """The persistent cache of this process."""
    if environment.get("TORCH_NEURONX_NEFF_DISABLE_CACHE"):
        return NeffCache(None)
    return NeffCache(
        environment.get("TORCH_NEURONX_NEFF_CACHE_DIR"), environment.get("TORCH_NEURONX_NEFF_CACHE_LOCK_TIMEOUT")
    )


class _Table:
    """What this process has compiled or is compiling, the latest used last."""

    def __init__(self) -> None:
        self.mutex = threading.Lock()
        self._futures: OrderedDict[str, Future[CompiledNeff]] = OrderedDict()
        self._bytes = 0

    def get_or_create(self, key: str) -> tuple[Future[CompiledNeff], bool]:
        """The future of `key`, and whether the caller has to fulfil it."""
        with self.mutex:
            future = self._futures.get(key)
            if future is not None:
                self._futures.move_to_end(key)
                return future, False
            future = self._futures[key] = Future()
            return future, True

    def done(self, neff: CompiledNeff) -> None:
        """Counts a finished entry; drops those that were not used for longest when there are too many."""
        with self.mutex:
            self._bytes += len(neff.data)
            if self._bytes <= _TABLE_BYTES:
                return
            for key, future in list(self._futures.items()):
                if self._bytes <= _TABLE_BYTES:
                    break
                if key != neff.key and future.done():
                    del self._futures[key]
                    self._bytes -= len(future.result().data)
                    metrics.increment("CompilationCache.Evictions")

    def drop(self, key: str) -> None:
        with self.mutex:
            self._futures.pop(key, None)

    def clear(self) -> None:
        """Forgets everything; in a forked child, where another thread may have held the lock."""
        self.mutex = threading.Lock()
        self._futures.clear()
        self._bytes = 0


_table = _Table()
os.register_at_fork(after_in_child=_table.clear)


def key_parts(program: Program, target: Target, optimize_level: int) -> Parts:
    """What the key of a NEFF is made of. Nothing about ranks, devices, paths or source lines."""
    driver = software if target.software else neuronx_cc
    return [
        ("format", _FORMAT),
        ("program", program.text.encode()),
        *target.key_parts(),
        ("flags", driver.flags(target, optimize_level).encode()),
    ]


def submit(program: Program, target: Target | None = None, *, kind: Kind = "eager") -> Future[CompiledNeff]:
    """Compiles on another thread, unless this process or another one has done so before.

    Equal programs share one future: do not cancel it. Its exception is a CompilationError that
    names the operator, its line, the shapes and the saved program; a failure is not kept.
    """
    target = target or current()
    level = environment.get("NEURON_COMPILER_OPT_LEVEL") or _DEFAULT_OPTIMIZE_LEVEL[kind]
    parts = key_parts(program, target, level)
    key = key_of(parts)
    future, mine = _table.get_or_create(key)
    metrics.increment("CompilationCache.InMemoryMisses" if mine else "CompilationCache.InMemoryHits")
    if mine:
        job = workers.Job(
            run=lambda: _fulfil(future, key, lambda: _load_or_compile(program, target, level, parts, key)),
            abandon=lambda: future.set_exception(CompilationError("the process ended before the compile began")),
        )
        if workers.in_worker():
            job.run()  # all workers could be waiting for each other
        else:
            workers.submit(job)
    return future


def compile_program(program: Program, target: Target | None = None, *, kind: Kind = "eager") -> CompiledNeff:
    """`submit`, and wait. Ctrl-C ends the wait at once. Raises CompilationError."""
    return submit(program, target, kind=kind).result()


def load(key: str) -> CompiledNeff | None:
    """A NEFF that was compiled before, by its key (from an index record); None when it is gone."""
    future, mine = _table.get_or_create(key)
    if not mine:
        metrics.increment("CompilationCache.InMemoryHits")
        try:
            return future.result()
        except CompilationError:
            return None
    metrics.increment("CompilationCache.InMemoryMisses")
    data = neff_cache().load(key)
    if data is None:
        _table.drop(key)
        future.set_exception(CompilationError(f"the NEFF {key} is no longer in the cache"))
        return None
    metrics.increment("CompilationCache.PersistentHits")
    neff = CompiledNeff(key, data)
    future.set_result(neff)
    _table.done(neff)
    return neff


def adopt(neff: CompiledNeff, manifest: dict[str, Any]) -> None:
    """Takes in a NEFF that was compiled elsewhere: for this process, and on disk unless it is there."""
    future, mine = _table.get_or_create(neff.key)
    if mine:
        future.set_result(neff)
        _table.done(neff)
    cache = neff_cache()
    if cache.load(neff.key) is None:
        cache.store(neff.key, neff.data, manifest)


def _fulfil(future: Future[CompiledNeff], key: str, produce: Callable[[], CompiledNeff]) -> None:
    try:
        neff = produce()
    except BaseException as error:
        _table.drop(key)  # before anybody learns of it: the next one tries again
        future.set_exception(error)
    else:
        future.set_result(neff)
        _table.done(neff)


def _load_or_compile(program: Program, target: Target, level: int, parts: Parts, key: str) -> CompiledNeff:
    cache = neff_cache()
    data = cache.load(key)
    if data is None:
        with cache.lock(key):
            data = cache.load(key)  # another process may have stored it since
            if data is None:
                metrics.increment("CompilationCache.PersistentMisses")
                return _compile(program, target, level, parts, key)
    metrics.increment("CompilationCache.PersistentHits")
    return CompiledNeff(key, data)


def _compile(program: Program, target: Target, level: int, parts: Parts, key: str) -> CompiledNeff:
    driver = software if target.software else neuronx_cc
    description = {
        **program.metadata,
        "inputs": [str(spec) for spec in program.inputs],
        "outputs": [str(spec) for spec in program.outputs],
    }
    metrics.increment("CompilationCache.TotalCompilations")
    started = time.perf_counter()
    try:
        data = driver.compile(program, target, level, description)
    except CompilerFailure as failure:
        raise _explain(program, key, description, str(failure)) from failure
    seconds = time.perf_counter() - started
    metrics.record("CompileTime", seconds)
    _log.info("compiled %s in %.1f ms: %s", description.get("operator", "a program"), seconds * 1e3, key)
    manifest = {**description, "compile_seconds": seconds, "parts": describe_parts(parts)}
    if environment.get("TORCH_NEURONX_PRESERVE_COMPILATION_ARTIFACTS"):
        artifacts.save(program, key, manifest, {"program.neff": data})
    neff_cache().store(key, data, manifest)
    return CompiledNeff(key, data, seconds)


def _explain(program: Program, key: str, description: dict[str, Any], reason: str) -> CompilationError:
    path = artifacts.save(program, key, description, {"error.txt": reason.encode(errors="replace")})
    source = description.get("line")
    message = (
        f"[{description.get('operator', 'program')}] did not compile: {reason.strip()}\n"
        f"  operands: {', '.join(map(str, description['inputs'])) or 'none'}\n"
        f"  results: {', '.join(map(str, description['outputs'])) or 'none'}\n"
        + (f"  called at: {source}\n" if source else "")
        + f"  program: {path or 'could not be saved'}"
    )
    return CompilationError(message, reason, path)
