# SPDX-License-Identifier: Apache-2.0
"""Compiles that fail, are interrupted, or go through the command of the vendor's compiler."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from torch_neuronx import compiler, metrics
from torch_neuronx.compiler import neuronx_cc
from torch_neuronx.compiler.errors import CompilerFailure
from torch_neuronx.stablehlo import Builder, Program
from torch_neuronx.stablehlo.program import TensorSpec

VENDOR = compiler.Target("trn2", 2, False, "neuronx-cc test")


def sum_program(size: int) -> Program:
    b = Builder()
    x, y = b.input((size,), torch.float32), b.input((size,), torch.float32)
    return b.finish([b.add(x, y)], {"operator": "aten::add.Tensor", "line": "model.py:7"})


def broken_program(size: int) -> Program:
    text = f"module {{ func.func public @main(%a: tensor<{size}xf32>) -> tensor<{size}xf32> {{ return %b }} }}"
    spec = TensorSpec((size,), torch.float32)
    return Program(text, text, (spec,), (spec,), {"operator": "aten::broken", "line": "model.py:12"})


def compilations() -> int:
    return metrics.get_counter_value("CompilationCache.TotalCompilations") or 0


@pytest.fixture
def debug_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TORCH_NEURONX_DEBUG_DIR", str(tmp_path / "debug"))
    return tmp_path / "debug"


# -- a program that does not compile ---------------------------------------------------------------


def test_the_error_names_operator_line_shapes_and_the_saved_program(debug_directory: Path) -> None:
    with pytest.raises(compiler.CompilationError) as caught:
        compiler.compile_program(broken_program(3))
    error = caught.value
    for expected in ("aten::broken", "model.py:12", "float32[3]", str(error.program_path)):
        assert expected in str(error)
    assert error.reason in str(error)
    saved = Path(error.program_path or "")
    assert saved.read_text() == broken_program(3).located_text
    assert saved.is_relative_to(debug_directory)
    assert json.loads((saved.parent / "description.json").read_text())["operator"] == "aten::broken"
    assert (saved.parent / "error.txt").read_text() == error.reason


def test_a_failure_is_not_kept(debug_directory: Path) -> None:
    before = compilations()
    for _ in range(2):
        with pytest.raises(compiler.CompilationError):
            compiler.compile_program(broken_program(5))
    assert compilations() == before + 2


def test_programs_are_saved_on_request_only(debug_directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler.compile, "neff_cache", lambda: compiler.cache.NeffCache(None))
    compiler.compile_program(sum_program(1001))
    monkeypatch.setenv("TORCH_NEURONX_PRESERVE_COMPILATION_ARTIFACTS", "1")
    compiler.compile_program(sum_program(1002))
    # Programs of earlier tests may still be compiling: there can be more than these.
    saved = {path.read_text() for path in debug_directory.rglob("program.mlir")}
    assert sum_program(1002).located_text in saved
    assert sum_program(1001).located_text not in saved


def test_an_unwritable_debug_directory_hides_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_NEURONX_DEBUG_DIR", "/proc/debug")
    with pytest.raises(compiler.CompilationError, match="aten::broken"):
        compiler.compile_program(broken_program(7))


def test_equal_programs_are_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler.compile, "neff_cache", lambda: compiler.cache.NeffCache(None))
    before = compilations()
    futures = [compiler.submit(sum_program(1003)) for _ in range(8)]
    assert len({future.result() for future in futures}) == 1
    assert compilations() == before + 1


def test_lines_and_names_are_no_part_of_the_key() -> None:
    first, second = sum_program(4), sum_program(4)
    object.__setattr__(second, "metadata", {"operator": "aten::add.Tensor", "line": "other.py:99"})
    object.__setattr__(second, "located_text", second.located_text + "// elsewhere")
    assert compiler.compile_program(first).key == compiler.compile_program(second).key


EAGER_FAILURE = """
import torch, torch_neuronx
from torch_neuronx import lowering
lowering.load_rules()
aten = torch.ops.aten
rule = lowering.TABLE[aten.erf.default]
lowering.TABLE[aten.erf.default] = rule._replace(
    function=lambda b, x: b.op("no_such_operation", [x], x.shape, x.dtype)
)
x = torch.arange(-3.0, 97.0).to("neuron")
try:
    y = torch.erf(x)          # the failing line
    y.cpu()
except RuntimeError as error:
    message = str(error)
else:
    raise SystemExit("no error")
for expected in ("aten::erf", "float32[100]", "program.mlir"):
    assert expected in message, message
print((x + 1).sum().item(), torch_neuronx.get_fallback_ops())
"""


def test_an_eager_operator_that_fails_to_compile_raises_and_the_process_goes_on(tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "TORCH_NEURONX_NEFF_CACHE_DIR": str(tmp_path / "cache"),
        "TORCH_NEURONX_DEBUG_DIR": str(tmp_path / "debug"),
    }
    result = subprocess.run(
        [sys.executable, "-c", EAGER_FAILURE], env=environment, capture_output=True, text=True, timeout=300
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("4750.0 ")
    assert "erf" not in result.stdout
    assert list((tmp_path / "debug").rglob("program.mlir"))


# -- the command neuronx-cc --------------------------------------------------------------------------


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Puts a `neuronx-cc` with the given body into PATH; it writes its arguments to `arguments` first."""

    def install(body: str) -> Path:
        path = tmp_path / "bin" / "neuronx-cc"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/bash\nprintf '%s\\n' \"$@\" >{tmp_path}/arguments\n{body}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("PATH", f"{path.parent}:{os.environ['PATH']}")
        return tmp_path / "arguments"

    return install


def test_the_command_gets_the_documented_arguments(command, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = command('cp "$2" "${@: -1}"; pwd >>"${@: -1}"; echo a warning >&2')
    monkeypatch.setenv("NEURON_CC_FLAGS", "--enable-fast-loading-neuron-binaries --unknown='a b'")
    data = neuronx_cc.compile(sum_program(4), VENDOR, 1, {}).decode()
    given = arguments.read_text().splitlines()
    assert given[0] == "compile" and given[1].endswith("/module.mlir") and given[-1].endswith("/module.neff")
    documented = "--framework XLA --target trn2 --lnc 2 -O1 --model-type transformer --auto-cast=none"
    assert given[2:-2] == [*documented.split(), "--enable-fast-loading-neuron-binaries", "--unknown=a b"]
    program, directory = data.rsplit("\n", 2)[:2]
    assert program + "\n" == sum_program(4).located_text
    assert directory == os.path.dirname(given[1])
    assert not os.path.exists(directory)


def test_flags_and_levels_are_part_of_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    def key(target: compiler.Target, level: int) -> str:
        return compiler.cache.key_of(compiler.compile.key_parts(sum_program(4), target, level))

    keys = {key(VENDOR, 1), key(VENDOR, 2), key(compiler.Target("trn3", 2, False, "neuronx-cc test"), 1)}
    keys |= {key(compiler.Target("trn2", 1, False, "neuronx-cc test"), 1)}
    keys |= {key(compiler.Target("trn2", 2, False, "neuronx-cc other"), 1)}
    monkeypatch.setenv("NEURON_CC_FLAGS", "--auto-cast=all")
    keys |= {key(VENDOR, 1)}
    assert len(keys) == 6


def test_what_the_command_says_is_kept(command, debug_directory: Path) -> None:
    command("echo '[INTERNAL_ERROR] [NCC_ITEN406] it does not fit' >&2; exit 70")
    with pytest.raises(compiler.CompilationError, match=r"status 70:\n.*NCC_ITEN406") as caught:
        compiler.compile_program(sum_program(5), VENDOR)
    assert "aten::add.Tensor" in str(caught.value)


def test_a_command_that_writes_nothing_is_an_error(command) -> None:
    command("exit 0")
    with pytest.raises(CompilerFailure, match="wrote no NEFF"):
        neuronx_cc.compile(sum_program(4), VENDOR, 1, {})


def test_a_missing_command_says_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CompilerFailure, match="TORCH_NEURONX_RUNTIME=software"):
        neuronx_cc.compile(sum_program(4), VENDOR, 1, {})


def test_a_killed_compiler_is_an_error_and_not_kept(command, debug_directory: Path) -> None:
    command("kill -9 $$")
    with pytest.raises(compiler.CompilationError, match="status -9"):
        compiler.compile_program(sum_program(4006), VENDOR)
    command('cp "$2" "${@: -1}"')
    assert compiler.compile_program(sum_program(4006), VENDOR).data


def test_a_killed_process_holds_nobody_up(command, tmp_path: Path) -> None:
    """It dies in the middle of a compile, with the lock; its compiler lives on."""
    command(f"echo $$ >{tmp_path}/pid; exec sleep 600")
    process = subprocess.Popen([sys.executable, "-c", KILLED, str(Path(__file__).parent)])
    pid = wait_for(tmp_path / "pid")
    try:
        command('cp "$2" "${@: -1}"')
        future = compiler.submit(sum_program(4007), VENDOR)
        process.kill()
        assert future.result(timeout=60).data
    finally:
        process.kill()
        process.wait()
        os.kill(pid, signal.SIGKILL)


# -- Ctrl-C ------------------------------------------------------------------------------------------

KILLED = """
import sys
sys.path.insert(0, sys.argv[1])
from test_compile_errors import VENDOR, sum_program
from torch_neuronx import compiler
compiler.compile_program(sum_program(4007), VENDOR)
"""

INTERRUPTED = """
import sys
sys.path.insert(0, sys.argv[1])
from test_compile_errors import VENDOR, sum_program
from torch_neuronx import compiler
print("ready", flush=True)
try:
    compiler.compile_program(sum_program(4), VENDOR)
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


def test_ctrl_c_ends_the_wait_and_the_command(command, tmp_path: Path) -> None:
    command(f"echo $$ >{tmp_path}/pid; sleep 600 & sleep 600")
    environment = {**os.environ, "TORCH_NEURONX_NEFF_CACHE_DIR": str(tmp_path / "cache")}
    process = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED, str(Path(__file__).parent)],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    pid = wait_for(tmp_path / "pid")
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert output == "interrupted\n"
    assert process.returncode == 0
    assert wait_until_gone(pid)
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.suffix in (".neff", ".json", ".tmp")]


def wait_for(path: Path) -> int:
    """The process id in `path`, once it is there."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if path.exists() and path.read_text().strip():
            return int(path.read_text())
        time.sleep(0.01)
    raise AssertionError(f"{path} was not written")


def wait_until_gone(pid: int) -> bool:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.01)
    return False


SOFTWARE_INTERRUPTED = """
import torch
x = torch.rand(64, 64).to("neuron")
print("ready", flush=True)
try:
    for size in range(2, 100000):
        x.new_ones(size).softmax(0).sum().item()
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


def test_ctrl_c_between_software_compiles(tmp_path: Path) -> None:
    environment = {**os.environ, "TORCH_NEURONX_NEFF_CACHE_DIR": str(tmp_path / "cache")}
    process = subprocess.Popen(
        [sys.executable, "-c", SOFTWARE_INTERRUPTED], env=environment, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    deadline = time.monotonic() + 120
    while len(list((tmp_path / "cache").rglob("*.neff"))) < 5 and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=120)
    assert output == "interrupted\n"
    assert process.returncode == 0
