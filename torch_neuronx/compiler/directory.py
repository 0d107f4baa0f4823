# SPDX-License-Identifier: Apache-2.0
"""Directories and files that this process may trust.

A NEFF is code that runs in this process. It is read only from files and directories that belong
to this user or to root and that nobody else may write. The parents of the cache directory are not
looked at: /tmp is writable by all, but its sticky bit keeps others from replacing what is ours.
"""

from __future__ import annotations

import os
import stat


class UntrustedError(Exception):
    """Somebody else owns or may write this file or directory."""


def check_trusted(status: os.stat_result, path: str) -> None:
    """Raises UntrustedError unless `status` is of something only this user or root may change."""
    if status.st_uid not in (os.geteuid(), 0):
        raise UntrustedError(f"{path} belongs to another user (uid {status.st_uid})")
    if stat.S_IMODE(status.st_mode) & 0o022 and not stat.S_ISLNK(status.st_mode):
        raise UntrustedError(
            f"{path} may be written by others (mode {stat.S_IMODE(status.st_mode):04o}); `chmod go-w` it, "
            "if its content is yours"
        )


def check_directory(path: str) -> None:
    """Raises UntrustedError for a directory others may change, FileNotFoundError when it is absent."""
    status = os.lstat(path)
    if stat.S_ISLNK(status.st_mode):
        check_trusted(status, path)  # a link of another user may point to a directory of ours
        status = os.stat(path)
    if not stat.S_ISDIR(status.st_mode):
        raise NotADirectoryError(f"{path} is not a directory")
    check_trusted(status, path)


def make_directory(path: str) -> None:
    """Creates `path` (mode 0700) with its parents where it is absent, then checks it."""
    try:
        check_directory(path)
        return
    except FileNotFoundError:
        pass
    parent = os.path.dirname(path)
    if parent and not os.path.isdir(parent):
        os.makedirs(parent, mode=0o700, exist_ok=True)
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        pass  # another process was faster; the check below says whose it is
    check_directory(path)


def open_trusted(path: str, flags: int, mode: int = 0o600) -> int:
    """Opens a regular file and checks the very file that was opened. Follows no symbolic link."""
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise UntrustedError(f"{path} is not a regular file")
        check_trusted(status, path)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def read_trusted(path: str) -> bytes:
    """The content of a trusted file."""
    with open(open_trusted(path, os.O_RDONLY), "rb") as file:
        return file.read()
