# SPDX-License-Identifier: Apache-2.0
"""The threads that compile.

They are daemon threads, so that a process waiting for a compile can be interrupted. At the end of
the process what has not begun is abandoned, and what runs is waited for: a thread that comes back
from C++ into an interpreter that is gone would crash it.
"""

from __future__ import annotations

import atexit
import os
import queue
import threading
from collections.abc import Callable
from typing import NamedTuple


class Job(NamedTuple):
    """Neither function may raise. `abandon` is called instead of `run` when the process ends first."""

    run: Callable[[], None]
    abandon: Callable[[], None]


_queue: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
_threads: list[threading.Thread] = []
_mutex = threading.Lock()
_closing = False
_local = threading.local()


def count() -> int:
    """How many threads there are at most: one for each core this process may use."""
    return len(os.sched_getaffinity(0))


def in_worker() -> bool:
    """Whether the calling thread is one of the workers, which must not wait for another one."""
    return getattr(_local, "worker", False)


def submit(job: Job) -> None:
    """Runs `job` on a worker."""
    with _mutex:
        if not _closing:
            if len(_threads) < count():
                thread = threading.Thread(target=_work, name=f"neuron-compile-{len(_threads)}", daemon=True)
                _threads.append(thread)
                thread.start()
            _queue.put(job)
            return
    job.abandon()


def _work() -> None:
    _local.worker = True
    while (job := _queue.get()) is not None:
        if _closing:
            job.abandon()
        else:
            job.run()
        del job  # it holds a program


def _close() -> None:
    global _closing
    from .neuronx_cc import stop_all

    with _mutex:
        _closing = True
        threads = list(_threads)
    stop_all()
    for _ in threads:
        _queue.put(None)
    for thread in threads:
        thread.join()


def _forget_threads() -> None:
    """In a forked child: the threads are not there, and locks may be held by them."""
    global _queue, _mutex
    _queue, _mutex = queue.SimpleQueue(), threading.Lock()
    _threads.clear()


atexit.register(_close)
os.register_at_fork(after_in_child=_forget_threads)
