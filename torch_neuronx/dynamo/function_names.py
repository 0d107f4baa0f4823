# SPDX-License-Identifier: Apache-2.0
"""Which function a line of a source file belongs to: what Dynamo has read, kept for the next process.

For its log, written or not, Dynamo names the function of every operator, and takes each source file apart with
Python's tokenizer to do so: a tenth of the time that it traces a model. Its answers are kept by the file's size and
time. They decide nothing but what the log says.
"""

from __future__ import annotations

import functools
import itertools
import os
import sys
from typing import Any

import torch
from torch._dynamo import funcname_cache

from ..compiler import Index, neff_cache
from ..compiler.cache import NeffCache

_LIST = b"files"


class FunctionNames:
    """In an index: the list of files, and for each its names."""

    def __init__(self, index: Index):
        self._index = index
        self._kept: set[str] = set()  # in the index, as far as this process knows
        self._modules_seen = 0

    def recall(self) -> None:
        """Hands Dynamo the names of files that this process has imported."""
        if len(sys.modules) == self._modules_seen:
            return
        self._modules_seen = len(sys.modules)
        listed = self._index.find(_LIST)
        if listed is None:
            return
        imported = {getattr(module, "__dict__", {}).get("__file__") for module in list(sys.modules.values())}
        for path in listed["files"]:
            if path not in funcname_cache.cache and path in imported:
                state = _state(path)
                record = self._index.find(path.encode()) if state else None
                if record is not None and record["state"] == state:
                    funcname_cache.cache[path] = _from_runs(record["runs"])
                    self._kept.add(path)

    def remember(self) -> None:
        """Keeps what Dynamo has read since the last time."""
        added = {path: _state(path) for path in funcname_cache.cache if path not in self._kept}
        if not added:
            return
        self._kept.update(added)
        files = {path: state for path, state in added.items() if state is not None}
        for path, state in files.items():
            self._index.add(path.encode(), {"state": state, "runs": _to_runs(funcname_cache.cache[path])})
        listed = self._index.find(_LIST) or {"files": []}
        self._index.add(_LIST, {"files": sorted({*listed["files"], *files})})


@functools.lru_cache(maxsize=1)
def _in_cache(cache: NeffCache) -> FunctionNames:
    return FunctionNames(Index(cache, f"function names of torch {torch.__version__}"))


def function_names() -> FunctionNames:
    return _in_cache(neff_cache())


def _state(path: str) -> list[int] | None:
    """Another one when the file was changed; None: there is no such file."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return [status.st_size, status.st_mtime_ns]


def _to_runs(names: dict[int, str]) -> list[Any]:
    """Lines that follow each other and have the same name, as [first, number of lines, name]."""
    runs = []
    for (_, name), group in itertools.groupby(enumerate(names), lambda entry: (entry[1] - entry[0], names[entry[1]])):
        lines = [line for _, line in group]
        runs.append([lines[0], len(lines), name])
    return runs


def _from_runs(runs: list[Any]) -> dict[int, str]:
    return {line: name for first, count, name in runs for line in range(first, first + count)}
