# SPDX-License-Identifier: Apache-2.0
"""What surrounds a compile, Dynamo's part included: Python is as it was afterwards."""

from __future__ import annotations

import contextlib
import gc
import threading

import pytest
import torch
from torch._dynamo.callback import callback_handler

from tests.compile_caches import empty_caches
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
