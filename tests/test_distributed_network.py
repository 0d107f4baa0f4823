# SPDX-License-Identifier: Apache-2.0
"""How ranks of several hosts find and connect each other."""

from __future__ import annotations

import json
import os
import socket
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch.distributed as dist

from torch_neuronx.distributed import network

TIMEOUT = timedelta(seconds=60)
SHORT = timedelta(seconds=1)


def connect(store: dist.Store, rank: int, size: int, timeout: timedelta = TIMEOUT) -> network.Connections:
    return network.connect(store, rank, size, timeout, "group")


def test_every_pair_is_connected():
    store, size = dist.HashStore(), 3
    with ThreadPoolExecutor(size) as pool:
        ranks = list(pool.map(lambda rank: connect(store, rank, size), range(size)))
    ends = {
        (rank, peer, purpose): socket.socket(fileno=ranks[rank].files[peer][purpose])
        for rank in range(size)
        for peer in range(size)
        for purpose in range(network.PURPOSES)
        if peer != rank
    }
    for (rank, peer, purpose), end in ends.items():
        end.sendall(b"%d %d %d" % (rank, peer, purpose))
    for (rank, peer, purpose), end in ends.items():
        assert end.recv(100) == b"%d %d %d" % (peer, rank, purpose)
        end.close()
    assert all(str(os.getpid()) in process for process in ranks[0].processes)


def test_a_stranger_gets_nothing():
    store = dist.HashStore()
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(connect, store, 0, 2)
        store.wait(["0"], TIMEOUT)
        rank_0 = network.Peer(*json.loads(store.get("0")))
        # Before rank 1, for whom alone rank 0 waits.
        with socket.create_connection(("127.0.0.1", rank_0.port)) as stranger:
            stranger.sendall(network.GREETING.pack(b"?" * 32, 1, 0))
            second = connect(store, 1, 2)
            assert stranger.recv(100) == b""
        first.result()
    assert second.files[1] == (-1, -1, -1)


def peer(**changes: object) -> str:
    with socket.create_server(("127.0.0.1", 0)) as closed_soon:
        port = closed_soon.getsockname()[1]
    fields = {
        "addresses": ["127.0.0.1"],
        "port": port,
        "secret": "00" * 32,
        "process": "process 7 on host-2",
        "machine": network._machine(),
        "version": network._version(),
    }
    return json.dumps(network.Peer(**{**fields, **changes}))


@pytest.mark.parametrize(
    ("rank_0", "words"),
    [
        ({}, ["rank 1 of 2", "rank 0 (process 7 on host-2)", "127.0.0.1: ", "refused", "GLOO_SOCKET_IFNAME"]),
        ({"machine": "another"}, ["it knows only 127.0.0.1", "GLOO_SOCKET_IFNAME"]),
        ({"version": "0.0.1"}, ["but rank 0 0.0.1", "one version"]),
    ],
    ids=["nobody listens", "loopback address of another machine", "version"],
)
def test_a_rank_that_cannot_be_connected(rank_0, words):
    store = dist.HashStore()
    store.set("0", peer(**rank_0))
    with pytest.raises(dist.DistNetworkError) as caught:
        connect(store, 1, 2, SHORT)
    for word in words:
        assert word in str(caught.value)


def test_a_rank_that_does_not_call():
    store = dist.HashStore()
    store.set("1", peer())
    with pytest.raises(dist.DistNetworkError, match="rank 0 of 2 was not called by rank 1 within 1 s"):
        connect(store, 0, 2, SHORT)


def test_a_rank_that_does_not_come():
    with pytest.raises(dist.DistBackendError, match="Missing: rank 1, 2"):
        connect(dist.HashStore(), 0, 3, SHORT)


def test_the_interface_may_be_named(monkeypatch):
    store = dist.HashStore()
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    assert network._addresses(store) == ["127.0.0.1"]
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "nonesuch0")
    with pytest.raises(dist.DistNetworkError, match="GLOO_SOCKET_IFNAME names 'nonesuch0'"):
        network._addresses(store)
