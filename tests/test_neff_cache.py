# SPDX-License-Identifier: Apache-2.0
"""The cache of compiled programs: entries, trust, damage, locks, the index, and what a process sees of it."""

from __future__ import annotations

import json
import multiprocessing
import os
import resource
import shutil
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import Event
from pathlib import Path

import pytest

from torch_neuronx.compiler import version
from torch_neuronx.compiler.cache import CacheWarning, NeffCache, describe_parts, key_of
from torch_neuronx.compiler.index import Index

PARTS = [("program", b"module {}"), ("target", b"trn2")]
KEY = key_of(PARTS)
DATA = b"neff" * 1000

# For processes that use the cache and no device.
FORK = multiprocessing.get_context("fork")


@pytest.fixture
def cache(tmp_path: Path) -> NeffCache:
    return NeffCache(str(tmp_path / "cache"))


def store(cache: NeffCache, key: str = KEY, data: bytes = DATA) -> bool:
    return cache.store(key, data, {"operator": "aten::add.Tensor", "parts": describe_parts(PARTS)})


def run_python(program: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )


# -- keys and entries ------------------------------------------------------------------------


def test_key_depends_on_every_label_and_value() -> None:
    variants = [
        [("program", b"module {}"), ("target", b"trn2")],
        [("program", b"module {}"), ("target", b"trn3")],
        [("program", b"module {}"), ("flags", b"trn2")],
        [("target", b"trn2"), ("program", b"module {}")],
        [("program", b"module {}t"), ("target", b"rn2")],
        [("program", b"module {}")],
    ]
    assert len({key_of(parts) for parts in variants}) == len(variants)
    assert key_of(PARTS) == key_of(list(PARTS))


def test_an_entry_is_sharded_private_and_comes_back(cache: NeffCache) -> None:
    assert cache.load(KEY) is None
    assert store(cache)
    assert cache.load(KEY) == DATA
    path = Path(cache.path(KEY))
    assert path == Path(cache.directory or "") / KEY[:2] / KEY[2:4] / f"{KEY}.neff"
    assert path.stat().st_mode & 0o777 == 0o600
    for directory in (path.parent, path.parent.parent, path.parent.parent.parent):
        assert directory.stat().st_mode & 0o777 == 0o700
    assert not list(path.parent.glob("*.tmp"))


def test_without_a_directory_nothing_is_kept() -> None:
    cache = NeffCache(None)
    assert not store(cache)
    assert cache.load(KEY) is None
    with cache.lock(KEY) as waited:
        assert not waited


@pytest.mark.parametrize("damage", ["truncate", "flip", "empty", "manifest", "another key"])
def test_a_damaged_entry_is_reported_once_and_replaced(cache: NeffCache, damage: str) -> None:
    store(cache)
    neff, manifest = Path(cache.path(KEY)), Path(cache.path(KEY, ".json"))
    if damage == "truncate":
        neff.write_bytes(DATA[:-1])
    elif damage == "flip":
        neff.write_bytes(b"X" + DATA[1:])
    elif damage == "empty":
        neff.write_bytes(b"")
    elif damage == "manifest":
        manifest.write_text('{"key": ')
    else:
        manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "key": "0" * 64}))
    with pytest.warns(CacheWarning, match="compiled anew"):
        assert cache.load(KEY) is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert cache.load(KEY) is None
    assert store(cache)
    assert cache.load(KEY) == DATA


def test_an_entry_without_its_manifest_is_none(cache: NeffCache) -> None:
    store(cache)
    os.unlink(cache.path(KEY, ".json"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert cache.load(KEY) is None


# -- trust -----------------------------------------------------------------------------------


def make_foreign(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes `path` somebody else's: truly where the test may, else by being somebody else ourselves."""
    if os.geteuid() == 0:
        os.chown(path, 12345, 12345)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 12345)


@pytest.mark.parametrize("level", ["directory", "shard", "file"])
@pytest.mark.parametrize("fault", ["owner", "writable"])
def test_what_others_may_change_is_not_loaded(
    cache: NeffCache, monkeypatch: pytest.MonkeyPatch, level: str, fault: str
) -> None:
    store(cache)
    neff = cache.path(KEY)
    path = {"directory": cache.directory or "", "shard": os.path.dirname(neff), "file": neff}[level]
    if fault == "owner":
        make_foreign(path, monkeypatch)
    else:
        os.chmod(path, 0o777)
    with pytest.warns(CacheWarning, match="not used"):
        assert cache.load(KEY) is None


def test_a_directory_that_others_may_write_gets_nothing(cache: NeffCache) -> None:
    os.mkdir(cache.directory or "", 0o700)
    os.chmod(cache.directory or "", 0o770)
    with pytest.warns(CacheWarning, match="chmod go-w"):
        assert not store(cache)
    assert os.listdir(cache.directory or "") == []


def test_symbolic_links_in_the_place_of_files_are_not_followed(cache: NeffCache, tmp_path: Path) -> None:
    store(cache)
    elsewhere = tmp_path / "elsewhere.neff"
    shutil.move(cache.path(KEY), elsewhere)
    os.symlink(elsewhere, cache.path(KEY))
    with pytest.warns(CacheWarning):
        assert cache.load(KEY) is None


def test_a_directory_of_root_is_trusted(cache: NeffCache, monkeypatch: pytest.MonkeyPatch) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can make a directory of root")
    store(cache)
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    assert cache.load(KEY) == DATA


# -- a disk that refuses -----------------------------------------------------------------------


def test_an_unwritable_directory_costs_one_warning() -> None:
    cache = NeffCache("/proc/neff_cache")
    with pytest.warns(CacheWarning, match="TORCH_NEURONX_NEFF_CACHE_DIR") as caught:
        assert not store(cache)
        assert not store(cache, key_of([("program", b"another")]))
    assert len(caught) == 1
    assert cache.load(KEY) is None
    with cache.lock(KEY):
        pass


def store_on_a_full_disk(cache: NeffCache, report: Connection) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        stored = [store(cache, f"{number:064x}", b"x" * 5000) for number in range(3)]
    report.send((stored, len(caught), cache.load("0" * 64)))


def test_a_full_disk_costs_one_warning_and_leaves_no_rubbish(cache: NeffCache) -> None:
    receiver, sender = FORK.Pipe(duplex=False)
    process = FORK.Process(target=store_on_a_full_disk, args=(cache, sender))
    process.start()
    assert receiver.recv() == ([False, False, False], 1, None)
    process.join()
    assert not [path for path in Path(cache.directory or "").rglob("*") if path.is_file()]


def test_a_directory_deleted_while_running_is_made_again(cache: NeffCache) -> None:
    store(cache)
    shutil.rmtree(cache.directory or "")
    assert cache.load(KEY) is None
    with cache.lock(KEY):
        shutil.rmtree(cache.directory or "")
        assert store(cache)
    assert cache.load(KEY) == DATA


# -- processes ---------------------------------------------------------------------------------


def compile_slowly(cache: NeffCache, log: Path) -> None:
    if cache.load(KEY) is None:
        with cache.lock(KEY):
            if cache.load(KEY) is None:
                with log.open("a") as file:
                    file.write("compiled\n")
                time.sleep(0.3)
                store(cache)
    assert cache.load(KEY) == DATA


def test_processes_compile_a_key_once(cache: NeffCache, tmp_path: Path) -> None:
    processes = [FORK.Process(target=compile_slowly, args=(cache, tmp_path / "log")) for _ in range(8)]
    run_all(processes)
    assert (tmp_path / "log").read_text().splitlines() == ["compiled"]
    assert not list(Path(cache.directory or "").rglob("*.lock"))


def run_all(processes: list[BaseProcess]) -> None:
    for process in processes:
        process.start()
    for process in processes:
        process.join(timeout=120)
    assert [process.exitcode for process in processes] == [0] * len(processes)


def hold(cache: NeffCache, held: Event) -> None:
    with cache.lock(KEY):
        held.set()
        time.sleep(600)


@pytest.fixture
def holder(cache: NeffCache) -> Iterator[BaseProcess]:
    """A process that holds the lock of KEY."""
    held = FORK.Event()
    process = FORK.Process(target=hold, args=(cache, held))
    process.start()
    assert held.wait(60)
    yield process
    process.kill()
    process.join()


def test_the_lock_of_a_dead_process_is_free(cache: NeffCache, holder: BaseProcess) -> None:
    acquired = threading.Event()

    def wait() -> None:
        with cache.lock(KEY) as waited:
            assert waited
            acquired.set()

    thread = threading.Thread(target=wait)
    thread.start()
    assert not acquired.wait(0.3)
    holder.kill()
    assert acquired.wait(30)
    thread.join()


def test_waiting_for_a_lock_ends(cache: NeffCache, holder: BaseProcess) -> None:
    cache.lock_timeout = 0.2
    with pytest.warns(CacheWarning, match="LOCK_TIMEOUT"), cache.lock(KEY) as waited:
        assert waited
        assert store(cache)
    assert cache.load(KEY) == DATA


# -- the index ---------------------------------------------------------------------------------


def test_records_come_back_in_another_process(cache: NeffCache) -> None:
    index = Index(cache, "1")
    for number in range(50):
        index.add(b"key %d" % number, {"neff": KEY, "number": number})
    again = Index(cache, "1")
    assert [(again.find(b"key %d" % n) or {})["number"] for n in range(50)] == list(range(50))
    assert again.find(b"key 50") is None
    assert Index(cache, "2").find(b"key 0") is None


def test_records_of_others_are_seen_while_running(cache: NeffCache) -> None:
    first, second = Index(cache, "1"), Index(cache, "1")
    assert first.find(b"key") is None
    second.add(b"key", {"neff": KEY})
    assert first.find(b"key") == {"neff": KEY}
    os.unlink(first.path or "")
    second.add(b"another", {"neff": KEY})
    assert first.find(b"another") == {"neff": KEY}
    assert first.find(b"key") == {"neff": KEY}


@pytest.mark.parametrize("damage", ["truncate", "flip", "unfinished", "noise"])
def test_damaged_lines_are_ignored(cache: NeffCache, damage: str) -> None:
    index = Index(cache, "1")
    for number in range(3):
        index.add(b"key %d" % number, {"number": number})
    path = Path(index.path or "")
    content = path.read_bytes()
    lost = set()
    if damage == "truncate":
        path.write_bytes(content[:-20])
        lost = {2}
    elif damage == "flip":
        path.write_bytes(content.replace(b'"number":1', b'"number":7'))
        lost = {1}
    elif damage == "unfinished":  # a writer died in the middle of a line
        path.write_bytes(content + b"0123456789abcdef")
    else:
        path.write_bytes(os.urandom(500) + b"\n" + content)
    again = Index(cache, "1")
    assert {n for n in range(3) if again.find(b"key %d" % n) is None} == lost
    for number in lost:
        again.add(b"key %d" % number, {"number": number})
    again.add(b"new", {"number": 9})
    once_more = Index(cache, "1")
    assert [once_more.find(b"key %d" % n) for n in range(3)] == [{"number": n} for n in range(3)]
    assert once_more.find(b"new") == {"number": 9}


def write_records(cache: NeffCache, name: str) -> None:
    index = Index(cache, "1")
    for number in range(300):
        index.add(b"%s %d" % (name.encode(), number), {"text": name * 50, "number": number})


def test_sources_are_hashed_once(cache: NeffCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "rule.py"
    source.write_text("one")
    hashed: list[str] = []
    add = version._add
    monkeypatch.setattr(version, "_package_files", lambda: [("rule.py", str(source))])
    monkeypatch.setattr(version, "_add", lambda digest, name, path: (hashed.append(name), add(digest, name, path)))
    remembered = Index(cache, "package sources")
    # Files that have just been written may change again within the resolution of their time stamps.
    one = version.package_fingerprint(remembered)
    assert version.package_fingerprint(remembered) == one and len(hashed) == 2
    monkeypatch.setattr(version, "_SETTLED_NS", 0)
    assert [version.package_fingerprint(remembered) for _ in range(3)] == [one] * 3 and len(hashed) == 3
    assert version.package_fingerprint(Index(cache, "package sources")) == one and len(hashed) == 3
    other = tmp_path / "other.py"
    other.write_text("two")
    os.utime(other, ns=(source.stat().st_atime_ns, source.stat().st_mtime_ns))
    os.replace(other, source)
    assert version.package_fingerprint(remembered) != one and len(hashed) == 4
    source.write_text("one")
    assert version.package_fingerprint(Index(NeffCache(None), "")) == one  # of the content only


def test_processes_write_one_index(cache: NeffCache) -> None:
    run_all([FORK.Process(target=write_records, args=(cache, name)) for name in "abc"])
    index = Index(cache, "1")
    for name in "abc":
        for number in range(300):
            assert index.find(b"%s %d" % (name.encode(), number)) == {"text": name * 50, "number": number}


def test_an_index_that_others_may_write_is_not_read(cache: NeffCache) -> None:
    index = Index(cache, "1")
    index.add(b"key", {"neff": KEY})
    os.chmod(index.path or "", 0o666)
    with pytest.warns(CacheWarning, match="not used"):
        assert Index(cache, "1").find(b"key") is None


# -- what a process sees of it -------------------------------------------------------------------

PROGRAM = """
import torch
from torch_neuronx.metrics import get_counter_value
x = torch.arange(7.0).to("neuron")
y = ((x * 2 + 1).sigmoid() + x).cpu()
torch.testing.assert_close(y, (torch.arange(7.0) * 2 + 1).sigmoid() + torch.arange(7.0))
print(get_counter_value("CompilationCache.TotalCompilations"), get_counter_value("CompilationCache.PersistentHits"))
"""


def counters(directory: Path, **environment: str) -> tuple[int, int]:
    """(programs compiled, programs found) of a process that runs PROGRAM."""
    result = run_python(PROGRAM, TORCH_NEURONX_NEFF_CACHE_DIR=str(directory), **environment)
    assert result.returncode == 0, result.stderr
    compiled, found = map(int, result.stdout.split())
    return compiled, found


def test_a_second_process_compiles_nothing(tmp_path: Path) -> None:
    directory = tmp_path / "cache"
    compiled, found = counters(directory)
    assert compiled > 0 and found == 0
    assert counters(directory) == (0, compiled)
    # The NEFFs alone are gone, the index is there: everything is compiled again.
    for path in directory.rglob("*.neff"):
        path.unlink()
    assert counters(directory) == (compiled, 0)
    # The index alone is gone: everything is lowered again, and found.
    shutil.rmtree(directory / "index")
    assert counters(directory) == (0, compiled)


def test_another_rank_and_core_share_the_programs(tmp_path: Path) -> None:
    compiled, _ = counters(tmp_path / "cache")
    assert counters(tmp_path / "cache", NEURON_RT_VISIBLE_CORES="3", RANK="3", LOCAL_RANK="0") == (0, compiled)


def test_a_disabled_cache_keeps_nothing(tmp_path: Path) -> None:
    compiled, _ = counters(tmp_path / "cache", TORCH_NEURONX_NEFF_DISABLE_CACHE="1")
    assert compiled > 0
    assert not (tmp_path / "cache").exists()


def test_work_goes_on_with_an_unusable_cache(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("not a directory")
    for directory in (file, file / "below", Path("/proc/neff_cache")):
        result = run_python(PROGRAM, TORCH_NEURONX_NEFF_CACHE_DIR=str(directory))
        assert result.returncode == 0, result.stderr
        assert result.stderr.count("CacheWarning") == 1, result.stderr


def test_damage_while_running_is_mended(tmp_path: Path) -> None:
    """Truncated, deleted and unwritable between two operators of one process."""
    program = """
import pathlib, shutil, sys, torch
directory = pathlib.Path(sys.argv[1])
x = torch.ones(5).to("neuron")
assert (x + 1).sum().item() == 10
for path in directory.rglob("*.neff"):
    path.write_bytes(path.read_bytes()[:100])
for path in directory.rglob("*.idx"):
    path.write_bytes(path.read_bytes()[:50])
assert (x + 1).sum().item() == 10
y = torch.ones(6).to("neuron")
assert (y + 1).sum().item() == 12
shutil.rmtree(directory)
z = torch.ones(8).to("neuron")
assert (z + 1).sum().item() == 16
print("done", len(list(directory.rglob("*.neff"))) > 0)
"""
    directory = tmp_path / "cache"
    result = run_python(program, str(directory), TORCH_NEURONX_NEFF_CACHE_DIR=str(directory))
    assert result.stdout.strip() == "done True", result.stderr


def test_processes_that_start_together_compile_each_program_once(tmp_path: Path) -> None:
    alone, _ = counters(tmp_path / "alone")
    command = [sys.executable, "-c", PROGRAM]
    environment = {**os.environ, "TORCH_NEURONX_NEFF_CACHE_DIR": str(tmp_path / "shared")}
    processes = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    outputs = [process.communicate(timeout=300)[0] for process in processes]
    assert sum(int(output.split()[0]) for output in outputs) == alone


PROGRAMS = 3

TOGETHER = """
import os, sys, torch
from torch_neuronx import compiler, metrics
from torch_neuronx.stablehlo import Builder
count = int(sys.argv[1])
together_read, together_write = os.pipe()
report_read, report_write = os.pipe()

def programs():
    for size in range(3):
        b = Builder()
        x = b.input((64 + size, 64), torch.float32)
        yield b.finish([b.tanh(x)], {"operator": "together"})

for _ in range(count):
    if os.fork() == 0:
        os.close(together_write)
        os.read(together_read, 1)  # until the parent closes it: all start at once
        futures = [compiler.submit(program, kind="graph") for program in programs()]
        keys = sorted(future.result().key for future in futures)
        compiled = metrics.get_counter_value("CompilationCache.TotalCompilations")
        os.write(report_write, f"{compiled} {' '.join(keys)}\\n".encode())
        os._exit(0)
os.close(together_write)
os.close(report_write)
for _ in range(count):
    assert os.wait()[1] == 0
print(open(report_read).read(), end="")
"""


def test_many_processes_that_start_together_compile_each_program_once(tmp_path: Path) -> None:
    """Forked before they use the device, as a launcher does that wants to start fast."""
    count = 64
    result = run_python(TOGETHER, str(count), TORCH_NEURONX_NEFF_CACHE_DIR=str(tmp_path / "cache"))
    assert result.returncode == 0, result.stderr
    lines = [line.split() for line in result.stdout.splitlines()]
    assert len(lines) == count
    assert sum(int(compiled) for compiled, *_ in lines) == PROGRAMS
    assert len({tuple(keys) for _, *keys in lines}) == 1
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.suffix in (".lock", ".tmp")]


def test_a_record_is_found_fast(cache: NeffCache) -> None:
    """Thousands of records must not be parsed to find one: bounds the work, not the time."""
    index = Index(cache, "1")
    for number in range(2000):
        index.add(b"%d" % number, {"number": number})
    parsed = []
    loads = json.loads
    again = Index(cache, "1")
    try:
        json.loads = lambda *a, **k: parsed.append(a) or loads(*a, **k)  # type: ignore[assignment]
        assert again.find(b"1999") == {"number": 1999}
    finally:
        json.loads = loads
    assert len(parsed) == 1


def test_times_of_entries_are_kept(cache: NeffCache) -> None:
    before = time.time()
    store(cache)
    manifest = cache.manifest(KEY)
    assert manifest is not None
    assert before <= manifest["created"] <= time.time()
    assert manifest["size"] == len(DATA)
