# SPDX-License-Identifier: Apache-2.0
"""What surrounds a compile, Dynamo's part included: Python as it was, and what Dynamo reads is kept."""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch._dynamo import funcname_cache
from torch._dynamo.callback import callback_handler
from torch.testing import assert_close

from tests.compile_caches import empty_caches, forget
from torch_neuronx import _C
from torch_neuronx.dynamo.compile_callbacks import _compile_starts, ask_for_callbacks

directory = pytest.fixture(autouse=True)(empty_caches)


def run(function: object) -> torch.Tensor:
    return torch.compile(function, backend="neuron", dynamic=False)(torch.ones(3, device="neuron")).cpu()  # type: ignore[call-overload]


# -- garbage collection --------------------------------------------------------------------------


@pytest.mark.parametrize("enabled", [True, False])
@pytest.mark.parametrize("fails", [False, True])
def test_garbage_collection_waits_for_the_compile(enabled: bool, fails: bool) -> None:
    during = []

    def function(x):
        return x.reshape(5) if fails else x.exp()

    ask_for_callbacks()
    callback_handler.register_start_callback(lambda _: during.append(gc.isenabled()))
    gc.enable() if enabled else gc.disable()
    frozen = gc.get_freeze_count()
    try:
        with contextlib.suppress(RuntimeError) if fails else contextlib.nullcontext():
            run(function)
        assert during == [False]
        assert gc.isenabled() == enabled
        assert gc.get_freeze_count() == frozen
    finally:
        gc.enable()


def test_collection_is_paused_again_after_a_reset() -> None:
    for _ in range(2):
        torch._dynamo.reset()
        run(lambda x: x.exp() + 7)
        assert gc.isenabled()
        assert _compile_starts in callback_handler.start_callbacks


# -- the memory of Python's frames ---------------------------------------------------------------


@pytest.mark.parametrize("fails", [False, True])
def test_frame_memory_is_kept_for_the_compile_only(fails: bool) -> None:
    kept_before = []

    def function(x):
        return x.reshape(5) if fails else x.exp()

    ask_for_callbacks()
    callback_handler.register_start_callback(lambda _: kept_before.append(not _C.keep_frame_memory()))
    with contextlib.suppress(RuntimeError) if fails else contextlib.nullcontext():
        run(function)
    assert kept_before == [True]
    try:
        assert _C.keep_frame_memory()
    finally:
        _C.free_frame_memory()


def nested(depth: int) -> int:
    return 0 if depth == 0 else 1 + nested(depth - 1)


def test_frames_of_any_depth_and_thread_live_in_kept_memory() -> None:
    found: list[int] = []

    def recurse() -> None:
        found.extend(nested(depth) for depth in range(0, 700, 7))

    assert _C.keep_frame_memory()
    try:
        threads = [threading.Thread(target=recurse) for _ in range(4)]
        for thread in threads:
            thread.start()
        recurse()
        for thread in threads[:2]:
            thread.join()
    finally:
        _C.free_frame_memory()
    for thread in threads[2:]:
        thread.join()
    recurse()
    assert sorted(found) == sorted(list(range(0, 700, 7)) * 6)


# -- names of functions --------------------------------------------------------------------------

SOURCE = '''
def outer(x):
    """Several
    lines."""
    def inner(y):
        return y.exp()
    return inner(x) + 1
'''


@pytest.fixture
def traced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """A module of its own."""
    path = tmp_path / "traced_module.py"
    path.write_text(SOURCE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(sys.modules, "traced_module", None)
    del sys.modules["traced_module"]
    yield importlib.import_module("traced_module")
    funcname_cache.cache.pop(str(path), None)


@pytest.fixture
def files_read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Files that Dynamo has taken apart."""
    seen: list[str] = []
    original = funcname_cache._add_file

    def add_file(path):
        seen.append(path)
        original(path)

    monkeypatch.setattr(funcname_cache, "_add_file", add_file)
    return seen


def compile_in_a_new_process(module: ModuleType) -> None:
    forget()
    ask_for_callbacks()
    funcname_cache.clearcache()
    assert_close(run(module.outer), torch.ones(3).exp() + 1)


def test_another_process_does_not_read_the_sources_again(traced: ModuleType, files_read: list[str]) -> None:
    path = traced.__file__
    assert path is not None
    compile_in_a_new_process(traced)
    assert files_read.count(path) == 1
    names = dict(funcname_cache.cache[path])
    assert names[6] == "outer.inner"
    compile_in_a_new_process(traced)
    assert files_read.count(path) == 1
    assert funcname_cache.cache[path] == names


def test_a_changed_source_is_read_again(traced: ModuleType, files_read: list[str]) -> None:
    path = traced.__file__
    assert path is not None
    compile_in_a_new_process(traced)
    with open(path, "a") as file:
        file.write("\n\ndef other():\n    return 0\n")
    os.utime(path, ns=(0, 0))
    for _ in range(2):
        compile_in_a_new_process(traced)
        assert files_read.count(path) == 2
        assert "other" in funcname_cache.cache[path].values()
