# SPDX-License-Identifier: Apache-2.0
"""Connects the ranks of a group that spans several hosts: three TCP connections for each pair.

Every rank listens and says in the store where. A rank connects to those below it and is called by those above. Whoever
calls shows the secret that the store holds, so that nobody else gets in.
"""

from __future__ import annotations

import fcntl
import hmac
import importlib.metadata
import json
import os
import secrets
import socket
import struct
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

import torch.distributed as dist

from .. import environment

PURPOSES = 3  # collectives, messages, control
ANSWER, CONFIRMATION = b"neuron", b"!"
# Of a single attempt, and of a stranger who connects and says nothing.
PATIENCE = 5.0
SIOCGIFADDR = 0x8915
GREETING = struct.Struct("!32sII")  # secret, rank, purpose


class Connections(NamedTuple):
    """By rank in the group; the entries of the rank itself are -1."""

    files: list[tuple[int, int, int]]
    processes: list[str]


class Peer(NamedTuple):
    """What a rank tells the others."""

    addresses: list[str]
    port: int
    secret: str
    process: str
    machine: str  # the same for ranks whose loopback interface may be the same
    version: str  # of what goes over the connections


def _version() -> str:
    return f"{importlib.metadata.version('torch-neuronx')} ({sys.byteorder} endian)"


def _machine() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _address_towards(host: str) -> str | None:
    """The address of this machine that packets to `host` leave from; none is sent."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(address)
            return probe.getsockname()[0]
    except OSError:
        return None


def _address_of_interface(name: str) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            request = struct.pack("256s", name.encode()[:15])
            return socket.inet_ntoa(fcntl.ioctl(probe, SIOCGIFADDR, request)[20:24])
        except OSError as error:
            raise dist.DistNetworkError(f"GLOO_SOCKET_IFNAME names {name!r}, which has no address: {error}") from error


def _addresses(store: dist.Store) -> list[str]:
    """Where others may reach this process, the best first."""
    if names := environment.get("GLOO_SOCKET_IFNAME"):
        return [_address_of_interface(name) for name in names.split(",")]
    while isinstance(store, dist.PrefixStore):
        store = store.underlying_store
    # Everybody reaches the store; the second is for one who lives beside it.
    hosts = [store.host] if isinstance(store, dist.TCPStore) else []
    found = [_address_towards(host) for host in (*hosts, "192.0.2.1", "127.0.0.1")]
    return list(dict.fromkeys(address for address in found if address is not None))


def _listen() -> socket.socket:
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", 0), family=socket.AF_INET6, backlog=128, dualstack_ipv6=True)
    return socket.create_server(("", 0), backlog=128)


def _receive(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        part = connection.recv(count - len(data))
        if not part:
            raise ConnectionError("closed by the other end")
        data += part
    return data


def _is_loopback(address: str) -> bool:
    return address.startswith("127.") or address == "::1"


def _call(rank: int, peer: Peer, purpose: int, machine: str, deadline: float) -> socket.socket:
    """A connection to `peer`."""
    failures = {}
    # The loopback address of another machine is this one's own.
    addresses = [address for address in peer.addresses if machine == peer.machine or not _is_loopback(address)]
    while True:
        for address in addresses:
            try:
                connection = socket.create_connection((address, peer.port), timeout=PATIENCE)
                try:
                    connection.sendall(GREETING.pack(bytes.fromhex(peer.secret), rank, purpose))
                    if _receive(connection, len(ANSWER)) != ANSWER:
                        raise ConnectionError("not a rank of the group answers there")
                    connection.sendall(CONFIRMATION)
                    return connection
                except BaseException:
                    connection.close()
                    raise
            except OSError as error:
                failures[address] = str(error)
        if time.monotonic() >= deadline or not addresses:
            reasons = "; ".join(f"{address}: {text}" for address, text in failures.items())
            raise ConnectionError(reasons or f"it knows only {', '.join(peer.addresses)} as its own address")
        time.sleep(0.1)


def _answer(listener: socket.socket, secret: str, deadline: float) -> Iterator[tuple[int, int, socket.socket]]:
    """Those who call and know the secret: rank, purpose and connection."""
    while True:
        listener.settimeout(max(0.01, deadline - time.monotonic()))
        try:
            connection, _ = listener.accept()
        except TimeoutError:
            return
        connection.settimeout(PATIENCE)
        try:
            shown, rank, purpose = GREETING.unpack(_receive(connection, GREETING.size))
            if not hmac.compare_digest(shown, bytes.fromhex(secret)):
                raise ConnectionError("a stranger")
            connection.sendall(ANSWER)
            # One that has waited too long is gone, and calls again.
            _receive(connection, len(CONFIRMATION))
        except OSError:
            connection.close()
            continue
        yield rank, purpose, connection


def connect(store: dist.Store, rank: int, size: int, timeout: timedelta, name: str) -> Connections:
    """Connects every pair of ranks. Raises DistNetworkError that names the ranks that cannot be reached in time."""
    deadline = time.monotonic() + timeout.total_seconds()
    machine, secret = _machine(), secrets.token_hex(32)
    sockets: dict[tuple[int, int], socket.socket] = {}
    where = f"group '{name}': rank {rank} of {size}"
    with _listen() as listener:
        process = f"process {os.getpid()} on {socket.gethostname()}"
        me = Peer(_addresses(store), listener.getsockname()[1], secret, process, machine, _version())
        store.set(str(rank), json.dumps(me))
        try:
            store.wait([str(r) for r in range(size)], timeout)
        except dist.DistStoreError as error:
            absent = ", ".join(str(r) for r in range(size) if not store.check([str(r)]))
            raise dist.DistBackendError(
                f"{where}: the group is not complete after {timeout.total_seconds():g} s. Missing: rank {absent}. "
                "Every rank has to create the group."
            ) from error
        peers = [Peer(*json.loads(store.get(str(r)))) for r in range(size)]
        for r, peer in enumerate(peers):
            if peer.version != me.version:
                raise dist.DistNetworkError(
                    f"{where} runs torch_neuronx {me.version}, but rank {r} {peer.version}. Use one version everywhere."
                )
        for r in range(rank):
            for purpose in range(PURPOSES):
                try:
                    sockets[r, purpose] = _call(rank, peers[r], purpose, machine, deadline)
                except OSError as error:
                    raise dist.DistNetworkError(
                        f"{where} cannot connect to rank {r} ({peers[r].process}): {error}. Set GLOO_SOCKET_IFNAME "
                        "to the network interface that connects the hosts."
                    ) from error
        expected = {(r, purpose) for r in range(rank + 1, size) for purpose in range(PURPOSES)}
        answered = _answer(listener, secret, deadline)
        while not expected <= sockets.keys() and (call := next(answered, None)) is not None:
            sockets[call[:2]] = call[2]
    if missing := sorted({r for r, purpose in expected - sockets.keys()}):
        raise dist.DistNetworkError(
            f"{where} was not called by rank {', '.join(map(str, missing))} within {timeout.total_seconds():g} s. Set "
            "GLOO_SOCKET_IFNAME to the network interface that connects the hosts."
        )
    for connection in sockets.values():
        connection.settimeout(None)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    files = [(-1, -1, -1)] * size
    for r in set(range(size)) - {rank}:
        collectives, messages, control = (sockets[r, purpose].detach() for purpose in range(PURPOSES))
        files[r] = collectives, messages, control
    return Connections(files, [peer.process for peer in peers])
