# SPDX-License-Identifier: Apache-2.0
"""neuron-cache: looks after the cache of compiled programs.

neuron-cache ls                       what is there
neuron-cache explain KEY              what an entry was made of, and how it differs from its relatives
neuron-cache verify                   checks every entry; removes damaged ones with --fix
neuron-cache prune --older-than 30d   removes entries that were not used; also --max-size 2G
neuron-cache clear                    removes everything
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from .. import environment
from ..compiler.cache import NeffCache
from ..compiler.directory import UntrustedError, check_directory, read_trusted
from ..compiler.reasons import changed_arguments, changed_operators

_UNITS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
# Operands and results that a line shows at most.
_LONGEST_LIST = 6
_AGES = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


@dataclass
class Entry:
    key: str
    manifest: dict[str, Any] | None  # None: the entry is damaged
    size: int
    used: float  # time of the last use, or of creation where the file system does not keep it
    problem: str = ""

    @property
    def operator(self) -> str:
        return str((self.manifest or {}).get("operator", "?"))

    @property
    def model(self) -> str:
        return str((self.manifest or {}).get("model", ""))

    @property
    def signature(self) -> str:
        manifest = self.manifest or {}
        return f"{_shortened(manifest.get('inputs', []))} -> {_shortened(manifest.get('outputs', []))}"

    @property
    def origin(self) -> tuple[str, ...]:
        """What two entries share that are compiles of the same thing: the function of a graph, or an operator."""
        manifest = self.manifest or {}
        if function := manifest.get("function"):
            return function, str(manifest.get("role")), self.model
        return (self.operator,)


def _shortened(specs: list[str]) -> str:
    if len(specs) <= _LONGEST_LIST:
        return ", ".join(specs)
    return f"{', '.join(specs[: _LONGEST_LIST - 1])}, … ({len(specs)})"


def keys(directory: str) -> Iterator[str]:
    """Keys of all entries, damaged ones too."""
    for first in sorted(os.listdir(directory)):
        if not re.fullmatch("[0-9a-f]{2}", first):
            continue
        for second in sorted(os.listdir(os.path.join(directory, first))):
            names = os.listdir(os.path.join(directory, first, second))
            yield from sorted(
                {name.rsplit(".", 1)[0] for name in names if re.fullmatch(r"[0-9a-f]{64}\.(neff|json)", name)}
            )


def read_entry(cache: NeffCache, key: str, verify: bool = False) -> Entry:
    """One entry; with `verify` its NEFF is read and its checksum compared."""
    size, used, problem, manifest = 0, 0.0, "", None
    for suffix in (".neff", ".json"):
        try:
            status = os.stat(cache.path(key, suffix))
            size += status.st_size
            used = max(used, status.st_atime, status.st_mtime)
        except FileNotFoundError:
            problem = f"{suffix} is missing"
    try:
        manifest = cache.manifest(key)
        if verify and manifest is not None and not problem:
            if hashlib.sha256(read_trusted(cache.path(key))).hexdigest() != manifest["sha256"]:
                problem = "the checksum does not match"
    except (OSError, ValueError, UntrustedError) as error:
        problem = str(error)
    return Entry(key, manifest, size, used, problem)


def entries(cache: NeffCache, verify: bool = False) -> list[Entry]:
    if cache.directory is None or not os.path.isdir(cache.directory):
        return []
    check_directory(cache.directory)
    return [read_entry(cache, key, verify) for key in keys(cache.directory)]


def remove(cache: NeffCache, key: str) -> None:
    """The manifest goes first: without it there is no entry."""
    for suffix in (".json", ".neff"):
        try:
            os.unlink(cache.path(key, suffix))
        except FileNotFoundError:
            pass


def parse_size(text: str) -> int:
    """ "500M", "2G": bytes."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?", text.strip().lower())
    if not match:
        raise argparse.ArgumentTypeError(f"{text!r} is no size; write 500M or 2G")
    return int(float(match[1]) * _UNITS[match[2]])


def parse_age(text: str) -> float:
    """ "30d", "12h": seconds."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smhdw])", text.strip().lower())
    if not match:
        raise argparse.ArgumentTypeError(f"{text!r} is no age; write 12h or 30d")
    return float(match[1]) * _AGES[match[2]]


def _megabytes(size: int) -> str:
    return f"{size / 2**20:.1f} MB"


def _age(moment: float) -> str:
    """ "5s", "12m", "3h", "40d": how long ago it was."""
    seconds = max(0.0, time.time() - moment)
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= length:
            return f"{int(seconds / length)}{unit}"
    return f"{int(seconds)}s"


def list_entries(cache: NeffCache, options: argparse.Namespace) -> int:
    found = entries(cache)
    if found:
        print(f"{'KEY':<16}  {'AGE':>4}  {'USED':>4}  {'BYTES':>9}  {'COMPILED':>10}  PROGRAM")
    for entry in sorted(found, key=lambda entry: entry.used, reverse=True):
        if entry.problem or entry.manifest is None:
            print(f"{entry.key[:16]}  damaged: {entry.problem}")
            continue
        name = f"{entry.model}: {entry.operator}" if entry.model else entry.operator
        print(
            f"{entry.key[:16]}  {_age(entry.manifest['created']):>4}  {_age(entry.used):>4}  {entry.size:>9}  "
            f"{entry.manifest.get('compile_seconds', 0.0) * 1e3:>7.0f} ms  {name}  {entry.signature}"
        )
    print(f"{len(found)} programs, {_megabytes(sum(entry.size for entry in found))} in {cache.directory}")
    return 0


def explain(cache: NeffCache, options: argparse.Namespace) -> int:
    """Why was this compiled? Shows what differs from entries of the same operator, or function."""
    found = entries(cache)
    chosen = [entry for entry in found if entry.key.startswith(options.key)]
    if len(chosen) != 1:
        print(f"{len(chosen)} entries begin with {options.key}", file=sys.stderr)
        return 1
    entry = chosen[0]
    if entry.manifest is None:
        print(f"{entry.key} is damaged: {entry.problem}", file=sys.stderr)
        return 1
    print(f"key       {entry.key}")
    for name in ("operator", "model", "function", "line", "operators", "inputs", "outputs", "compile_seconds"):
        if value := entry.manifest.get(name):
            print(f"{name:<9} {', '.join(value) if isinstance(value, list) else value}")
    print(f"size      {entry.size} bytes")
    print(f"created   {time.ctime(entry.manifest['created'])}")
    print(f"used      {time.ctime(entry.used)}")
    if arguments := entry.manifest.get("arguments"):
        print("arguments")
        for name, what in arguments:
            print(f"  {name:<18} {what}")
    print("the key was made of")
    for label, digest, text in entry.manifest["parts"]:
        print(f"  {label:<18} {text or 'SHA-256 ' + digest}")
    relatives = [other for other in found if not other.problem and other.origin == entry.origin and other is not entry]
    if not relatives:
        print(f"it is the only entry of {entry.origin[0]}")
    for other in sorted(relatives, key=lambda other: (other.manifest or {})["created"]):
        print(f"unlike {other.key[:16]} ({other.signature}): {'; '.join(differences(entry, other)) or 'nothing'}")
    return 0


def differences(entry: Entry, other: Entry) -> list[str]:
    """What made the keys differ: parts, and of the program the arguments, or the operands and results."""
    assert entry.manifest and other.manifest
    theirs = {label: digest for label, digest, _ in other.manifest["parts"]}
    different = []
    for label, digest, _ in entry.manifest["parts"]:
        if theirs.get(label) == digest:
            continue
        if label != "program":
            different.append(label)
            continue
        reasons = changed_arguments(
            dict(other.manifest.get("arguments", [])), dict(entry.manifest.get("arguments", []))
        ) + changed_operators(other.manifest.get("operators", []), entry.manifest.get("operators", []))
        if reasons:
            different += reasons
            continue
        sides = [side for side in ("inputs", "outputs") if entry.manifest.get(side) != other.manifest.get(side)]
        different += sides or ["the program's text: a number or a flag that is part of it"]
    return different


def verify(cache: NeffCache, options: argparse.Namespace) -> int:
    found = entries(cache, verify=True)
    damaged = [entry for entry in found if entry.problem]
    for entry in damaged:
        print(f"{cache.path(entry.key)}: {entry.problem}")
        if options.fix:
            remove(cache, entry.key)
    print(f"{len(found)} programs, {len(damaged)} damaged{' and removed' if options.fix and damaged else ''}")
    return 1 if damaged and not options.fix else 0


def prune(cache: NeffCache, options: argparse.Namespace) -> int:
    if options.older_than is None and options.max_size is None:
        print("neuron-cache prune: give --older-than, --max-size or both", file=sys.stderr)
        return 2
    kept, removed = sorted(entries(cache), key=lambda entry: entry.used, reverse=True), []
    if options.older_than is not None:
        oldest = time.time() - options.older_than
        removed += [entry for entry in kept if entry.used < oldest]
        kept = [entry for entry in kept if entry.used >= oldest]
    if options.max_size is not None:
        total = sum(entry.size for entry in kept)
        while kept and total > options.max_size:
            removed.append(kept.pop())
            total -= removed[-1].size
    for entry in removed:
        remove(cache, entry.key)
    _remove_indexes(cache, options.older_than)
    print(f"removed {len(removed)} programs, {_megabytes(sum(entry.size for entry in removed))}; {len(kept)} are left")
    return 0


def _remove_indexes(cache: NeffCache, older_than: float | None) -> None:
    """Indexes of versions that are no longer in use; None removes none."""
    directory = os.path.join(cache.directory or "", "index")
    if older_than is None or not os.path.isdir(directory):
        return
    for entry in os.scandir(directory):
        if entry.name.endswith(".idx") and entry.stat().st_mtime < time.time() - older_than:
            os.unlink(entry.path)


def clear(cache: NeffCache, options: argparse.Namespace) -> int:
    found = entries(cache)
    for entry in found:
        remove(cache, entry.key)
    _remove_indexes(cache, -1.0)
    print(f"removed {len(found)} programs, {_megabytes(sum(entry.size for entry in found))}")
    return 0


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="neuron-cache", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--directory", default=None, help="instead of TORCH_NEURONX_NEFF_CACHE_DIR")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("ls").set_defaults(run=list_entries)
    command = commands.add_parser("explain")
    command.add_argument("key", help="a key, or its first characters")
    command.set_defaults(run=explain)
    command = commands.add_parser("verify")
    command.add_argument("--fix", action="store_true", help="remove what is damaged")
    command.set_defaults(run=verify)
    command = commands.add_parser("prune")
    command.add_argument("--older-than", type=parse_age, help="not used for this long: 12h, 30d")
    command.add_argument("--max-size", type=parse_size, help="keep the latest used that fit: 500M, 2G")
    command.set_defaults(run=prune)
    commands.add_parser("clear").set_defaults(run=clear)
    options = parser.parse_args(arguments)
    cache = NeffCache(options.directory or environment.get("TORCH_NEURONX_NEFF_CACHE_DIR"))
    try:
        return options.run(cache, options)
    except (UntrustedError, OSError) as error:
        print(f"neuron-cache: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
