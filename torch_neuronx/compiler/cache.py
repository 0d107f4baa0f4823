# SPDX-License-Identifier: Apache-2.0
"""The persistent cache of compiled programs.

An entry is two files, `ab/cd/<key>.neff` and its manifest `ab/cd/<key>.json` (checksum, what the
key was made of, where the program came from). The manifest is written last: an entry without one
is not an entry. The cache never makes a program fail: whatever goes wrong with it costs one
warning and a compile.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import tempfile
import time
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

from ..log import OncePer, logger
from .directory import UntrustedError, check_directory, make_directory, open_trusted, read_trusted

_log = logger(__name__)

_FIRST_POLL_SECONDS = 0.002
_LONGEST_POLL_SECONDS = 0.1

# File systems that have no locks say so with one of these; work goes on without.
_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)

Parts = Sequence[tuple[str, bytes]]


class CacheWarning(RuntimeWarning):
    """Something is wrong with the cache; the program works, but compiles more than it should."""


def key_of(parts: Parts) -> str:
    """SHA-256 over the labelled parts, each with its length, so that no two lists collide."""
    digest = hashlib.sha256()
    for label, value in parts:
        name = label.encode()
        digest.update(len(name).to_bytes(8, "little") + name)
        digest.update(len(value).to_bytes(8, "little") + value)
        _log.debug("key part %s: %d bytes", label, len(value))
    return digest.hexdigest()


def describe_parts(parts: Parts) -> list[list[str]]:
    """[label, SHA-256, the value itself if it is short] of each part, for the manifest."""
    rows = []
    for label, value in parts:
        text = value.decode(errors="replace") if len(value) <= 200 else ""
        rows.append([label, hashlib.sha256(value).hexdigest(), text])
    return rows


class NeffCache:
    """The cache in one directory. Threads and processes may share it.

    directory: where; None keeps nothing.
    lock_timeout: seconds to wait for another process that compiles the same program.
    """

    def __init__(self, directory: str | None, lock_timeout: float = 1200.0):
        self.directory = os.path.abspath(directory) if directory else None
        self.lock_timeout = lock_timeout
        self._persist = directory is not None
        self._warned = OncePer()

    def path(self, key: str, suffix: str = ".neff") -> str:
        assert self.directory is not None
        return os.path.join(self.directory, key[:2], key[2:4], key + suffix)

    def warn_once(self, subject: str, message: str) -> None:
        """Warns about `subject`, once for this cache."""
        if self._warned.first(subject):
            warnings.warn(message, CacheWarning, stacklevel=3)

    # -- reading ---------------------------------------------------------------------------

    def manifest(self, key: str) -> dict[str, Any] | None:
        """The manifest of an entry; None when there is none. Raises ValueError for a damaged one."""
        if self.directory is None:
            return None
        try:
            self.check(key)
            text = read_trusted(self.path(key, ".json"))
        except (FileNotFoundError, NotADirectoryError):
            return None
        manifest = json.loads(text)
        if not isinstance(manifest, dict) or manifest.get("key") != key or "sha256" not in manifest:
            raise ValueError("the manifest is of another entry")
        return manifest

    def load(self, key: str) -> bytes | None:
        """The NEFF of `key`; None when it is not there, damaged, or not to be trusted."""
        if self.directory is None:
            return None
        try:
            manifest = self.manifest(key)
            if manifest is None:
                return None
            data = read_trusted(self.path(key))
            if hashlib.sha256(data).hexdigest() != manifest["sha256"]:
                raise ValueError("the checksum does not match")
            return data
        except FileNotFoundError:
            return None
        except UntrustedError as error:
            self.warn_once("trust", f"The NEFF cache is not used: {error}. Programs are compiled anew.")
        except (OSError, ValueError) as error:
            self.warn_once(key, f"{self.path(key)} is damaged ({error}); the program is compiled anew.")
        return None

    def check(self, key: str) -> None:
        """Raises UntrustedError if others may change a directory that leads to the entry."""
        assert self.directory is not None
        shard = os.path.join(self.directory, key[:2])
        for directory in (self.directory, shard, os.path.join(shard, key[2:4])):
            check_directory(directory)

    # -- writing ---------------------------------------------------------------------------

    def store(self, key: str, data: bytes, manifest: dict[str, Any]) -> bool:
        """Writes an entry; returns whether it is on disk now."""
        if not self._persist:
            return False
        manifest = {
            "key": key,
            "sha256": hashlib.sha256(data).hexdigest(),
            "size": len(data),
            "created": time.time(),
            **manifest,
        }
        text = json.dumps(manifest).encode()
        return self.attempt_write(lambda: self._write_entry(key, data, text))

    def _write_entry(self, key: str, data: bytes, manifest: bytes) -> None:
        self._make_shard(key)
        write_atomically(self.path(key), data)
        write_atomically(self.path(key, ".json"), manifest)

    def _make_shard(self, key: str) -> None:
        assert self.directory is not None
        shard = os.path.join(self.directory, key[:2])
        for directory in (self.directory, shard, os.path.join(shard, key[2:4])):
            make_directory(directory)

    def attempt_write(self, write: Any) -> bool:
        """Runs `write`; if the disk refuses, warns once and writes nothing more in this process."""
        if not self._persist:
            return False
        for attempt in (1, 2):
            try:
                write()
                return True
            except UntrustedError as error:
                self._persist = False
                self.warn_once("trust", f"The NEFF cache is not used: {error}. Compiled programs are not kept.")
            except FileNotFoundError as error:
                # Somebody removed the directory while we wrote; the second attempt makes it anew.
                if attempt == 2:
                    self._give_up(error)
                continue
            except OSError as error:
                self._give_up(error)
            return False
        return False

    def _give_up(self, error: OSError) -> None:
        self._persist = False
        self.warn_once(
            "write",
            f"Compiled programs are not kept: {self.directory} cannot be written ({error.strerror or error}). "
            "Set TORCH_NEURONX_NEFF_CACHE_DIR to a directory with free space that you may write.",
        )

    # -- one compile per key across processes ------------------------------------------------

    @contextlib.contextmanager
    def lock(self, key: str) -> Iterator[bool]:
        """Holds the lock of `key`; yields whether it had to wait, so that the entry may be there now.

        The kernel frees the lock of a process that dies. Without a directory to write, and after
        `lock_timeout` seconds, it yields without the lock.
        """
        descriptor, waited = self._acquire(key) if self._persist else (None, False)
        try:
            yield waited
        finally:
            if descriptor is not None:
                # Removed while held: whoever waits for this file sees that it is gone and makes a new one.
                with contextlib.suppress(OSError):
                    os.unlink(self.path(key, ".lock"))
                os.close(descriptor)

    def _acquire(self, key: str) -> tuple[int | None, bool]:
        path = self.path(key, ".lock")
        deadline = time.monotonic() + self.lock_timeout
        pause = _FIRST_POLL_SECONDS
        waited = False
        attempts_to_open = 3  # a directory that is removed all the time, or cannot be made
        while True:
            try:
                self._make_shard(key)
                descriptor = open_trusted(path, os.O_RDWR | os.O_CREAT)
            except FileNotFoundError:
                attempts_to_open -= 1
                if attempts_to_open == 0:
                    return None, waited
                continue
            except (OSError, UntrustedError):
                return None, waited  # `store` says why
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if _is_file(descriptor, path):
                    return descriptor, waited
                os.close(descriptor)  # the holder before us removed the file: take the new one
                waited = True
                continue
            except OSError as error:
                os.close(descriptor)
                if error.errno in _NO_LOCKS:
                    return None, waited
                if error.errno not in (errno.EAGAIN, errno.EACCES):
                    raise
            except BaseException:
                os.close(descriptor)
                raise
            waited = True
            if time.monotonic() > deadline:
                self.warn_once(
                    "lock",
                    f"Another process has been compiling {key} for more than {self.lock_timeout:g} s "
                    "(TORCH_NEURONX_NEFF_CACHE_LOCK_TIMEOUT); it is compiled here too.",
                )
                return None, waited
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_POLL_SECONDS)


def _is_file(descriptor: int, path: str) -> bool:
    try:
        there = os.stat(path, follow_symlinks=False)
    except FileNotFoundError:
        return False
    here = os.fstat(descriptor)
    return (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino)


def write_atomically(path: str, data: bytes) -> None:
    """Writes a file of mode 0600 that others see whole or not at all."""
    descriptor, temporary = tempfile.mkstemp(prefix=".", suffix=".tmp", dir=os.path.dirname(path))
    try:
        with open(descriptor, "wb") as file:
            file.write(data)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
