# SPDX-License-Identifier: Apache-2.0
"""Processes that are the ranks of a group, for the tests of torch.distributed.

A world starts once for a test module; a test sends a function, which every rank runs.
"""

from __future__ import annotations

import os
import socket
import traceback
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.multiprocessing as multiprocessing

# Far more than anything takes: for what would never end.
TIMEOUT = timedelta(minutes=5)
# What the server of the processes imports once for all of them; none of it starts a thread or touches a device.
PRELOADED = ["torch", "torch.testing", "torch.distributed.tensor.parallel", "torch._dynamo", "diffusers"]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _serve(
    rank: int,
    size: int,
    hosts: int,
    port: int,
    backend: str | None,
    environment: dict[str, str],
    tasks: Any,
    results: Any,
) -> None:
    ranks_of_host = size // hosts
    os.environ.update(
        RANK=str(rank),
        WORLD_SIZE=str(size),
        LOCAL_RANK=str(rank % ranks_of_host),
        LOCAL_WORLD_SIZE=str(ranks_of_host),
        GROUP_RANK=str(rank // ranks_of_host),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
        **environment,
    )
    torch.set_num_threads(1)
    import torch.distributed as dist

    dist.init_process_group(backend, timeout=TIMEOUT)
    while True:
        task = tasks.get()
        if task is None:
            break
        function, arguments = task
        try:
            results.put((rank, True, function(rank, size, *arguments)))
        except BaseException:
            results.put((rank, False, traceback.format_exc()))
    dist.destroy_process_group()


class World:
    """`hosts`: how many hosts the ranks are on, as torchrun would say it with so many agents. Ranks of several hosts
    meet over the network, be it that of one machine."""

    def __init__(self, size: int, backend: str | None = "neuron", hosts: int = 1, **environment: str) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(PRELOADED)
        self.size = size
        self._tasks = [context.Queue() for _ in range(size)]
        self._results = context.Queue()
        port = free_port()
        self.processes = [
            context.Process(
                target=_serve,
                args=(rank, size, hosts, port, backend, environment, self._tasks[rank], self._results),
                daemon=True,
            )
            for rank in range(size)
        ]
        for process in self.processes:
            process.start()

    def start(self, function: Callable[..., Any], *arguments: Any) -> None:
        for tasks in self._tasks:
            tasks.put((function, arguments))

    def results(self, count: int | None = None) -> dict[int, Any]:
        """What `count` ranks (all by default) return, by rank. Fails with the traceback of a rank that raised."""
        values = {}
        failures = []
        for _ in range(self.size if count is None else count):
            rank, passed, value = self._results.get(timeout=2 * TIMEOUT.total_seconds())
            if passed:
                values[rank] = value
            else:
                failures.append(f"rank {rank}:\n{value}")
        assert not failures, "\n".join(failures)
        return values

    def run(self, function: Callable[..., Any], *arguments: Any) -> dict[int, Any]:
        """Runs function(rank, size, *arguments) on every rank."""
        self.start(function, *arguments)
        return self.results()

    def close(self) -> list[int | None]:
        """Ends all ranks; returns their exit codes."""
        for process, tasks in zip(self.processes, self._tasks, strict=True):
            if process.is_alive():
                tasks.put(None)
        for process in self.processes:
            process.join(timeout=60)
        codes = [process.exitcode for process in self.processes]
        for process in self.processes:
            if process.is_alive():
                process.kill()
        return codes
