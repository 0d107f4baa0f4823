# SPDX-License-Identifier: Apache-2.0
"""From an operator key or a graph fingerprint to a compiled program, without lowering anything.

One append-only file per version of the package, `index/<version>.idx`, holds a line per record:

    <BLAKE2 of the key> <BLAKE2 of the rest> <JSON>

Every line carries its checksum, so a truncated, damaged or interleaved line is a line less. Lines
are found when the file is read (a split), and parsed when they are asked for. The first line is a
random name of the file, by which a reader notices that the file was removed and begun anew.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import threading
from typing import Any

from ..log import logger
from .cache import NeffCache
from .directory import UntrustedError, check_directory, make_directory, open_trusted

_log = logger(__name__)

_DIGEST_BYTES = 16
_CHECK_BYTES = 8
_DIGEST_HEX = 2 * _DIGEST_BYTES
_CHECK_HEX = 2 * _CHECK_BYTES
_JSON_START = _DIGEST_HEX + _CHECK_HEX + 2
_NAME_BYTES = 16


def _digest(key: bytes) -> bytes:
    return hashlib.blake2b(key, digest_size=_DIGEST_BYTES).hexdigest().encode()


def _checksum(digest: bytes, body: bytes) -> bytes:
    return hashlib.blake2b(digest + body, digest_size=_CHECK_BYTES).hexdigest().encode()


class Index:
    """The index of one version of the package, in the directory of `cache`.

    version: changes with everything that a record depends on: lowering rules, compiler, torch. The attribute is a
    hash of it.
    """

    def __init__(self, cache: NeffCache, version: str):
        self._cache = cache
        self._directory = os.path.join(cache.directory, "index") if cache.directory else None
        self.version = hashlib.blake2b(version.encode(), digest_size=16).hexdigest()
        self._name = self.version + ".idx"
        self._lines: dict[bytes, bytes] = {}
        self._file_name = b""
        self._read_bytes = 0
        self._mutex = threading.Lock()

    @property
    def path(self) -> str | None:
        return os.path.join(self._directory, self._name) if self._directory else None

    def find(self, key: bytes) -> dict[str, Any] | None:
        """The record of `key`, or None."""
        digest = _digest(key)
        with self._mutex:
            line = self._lines.get(digest)
            if line is None:
                self._read_more()
                line = self._lines.get(digest)
            if line is None:
                return None
        record = _parse(digest, line)
        if record is None:
            _log.info("a damaged line of %s is ignored", self.path)
            with self._mutex:
                self._lines.pop(digest, None)
        return record

    def add(self, key: bytes, record: dict[str, Any]) -> None:
        """Remembers `record` (what JSON can hold) for `key`, in this process and on disk."""
        digest = _digest(key)
        body = json.dumps(record, separators=(",", ":")).encode()
        line = digest + b" " + _checksum(digest, body) + b" " + body
        with self._mutex:
            self._lines[digest] = line
        if self._directory is not None:
            self._cache.attempt_write(lambda: self._append(line))

    def _append(self, line: bytes) -> None:
        assert self._directory is not None and self.path is not None and self._cache.directory is not None
        make_directory(self._cache.directory)
        make_directory(self._directory)
        descriptor = open_trusted(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            except OSError:
                pass  # no locks here: one append is one write, and a torn line is ignored
            if os.fstat(descriptor).st_size == 0:
                _write_all(descriptor, os.urandom(_NAME_BYTES // 2).hex().encode())
            # The newline in front closes a line that a writer left unfinished when it died.
            _write_all(descriptor, b"\n" + line + b"\n")
        finally:
            os.close(descriptor)

    def _read_more(self) -> None:
        """Reads what was appended since the last time; everything, if the file is another one now."""
        if self._directory is None or self.path is None or self._cache.directory is None:
            return
        try:
            check_directory(self._cache.directory)
            check_directory(self._directory)
            descriptor = open_trusted(self.path, os.O_RDONLY)
        except UntrustedError as error:
            self._cache.warn_once("trust", f"The NEFF cache is not used: {error}. Programs are compiled anew.")
            return
        except OSError:
            return
        with open(descriptor, "rb") as file:
            try:
                name = os.pread(descriptor, _NAME_BYTES, 0)
                if name != self._file_name or os.fstat(descriptor).st_size < self._read_bytes:
                    self._file_name, self._read_bytes = name, 0
                file.seek(self._read_bytes)
                text = file.read()
            except OSError as error:
                self._cache.warn_once("index", f"{self.path} cannot be read ({error}); programs are lowered anew.")
                return
        # An unfinished last line is read again when it has been finished.
        complete = text.rfind(b"\n") + 1
        self._read_bytes += complete
        for line in text[:complete].split(b"\n"):
            if len(line) > _JSON_START:
                self._lines[line[:_DIGEST_HEX]] = line


def _parse(digest: bytes, line: bytes) -> dict[str, Any] | None:
    body = line[_JSON_START:]
    if line[_DIGEST_HEX + 1 : _JSON_START - 1] != _checksum(digest, body):
        return None
    try:
        record = json.loads(body)
    except ValueError:
        return None
    return record if isinstance(record, dict) else None


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
