# SPDX-License-Identifier: Apache-2.0
"""What compiled graphs leave in the cache, and what another process makes of it."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.testing import assert_close

from tests.compile_caches import compilations, counts, empty_caches, forget
from torch_neuronx import _C, cache_artifacts, compiler
from torch_neuronx.compiler.cache import CacheWarning
from torch_neuronx.dynamo import backend, inference
from torch_neuronx.neuron_dynamo_backend import get_dynamo_metrics, set_model_name
from torch_neuronx.tools import neuron_cache

directory = pytest.fixture(autouse=True)(empty_caches)


def function(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.dropout(x.sin(), 0.0).square().sum()


def train(device: str = "neuron", size: int = 6) -> torch.Tensor:
    """Runs a forward and a backward graph; returns the gradient."""
    x = torch.arange(float(size)).to(device).requires_grad_()
    torch.compile(function, backend="neuron", fullgraph=True, dynamic=False)(x).backward()
    assert x.grad is not None
    values = torch.arange(float(size))
    assert_close(x.grad.cpu(), 2 * values.sin() * values.cos())
    return x.grad


def sources() -> list[str]:
    return [graph["source"] for graph in get_dynamo_metrics()["per_graph"]]


# -- another process -----------------------------------------------------------------------------


def test_a_warm_process_neither_lowers_nor_compiles() -> None:
    train()
    assert counts() == (2, 0)
    assert sources() == ["compiler", "compiler"]
    forget()
    before = compilations()
    train()
    assert counts() == (0, 2)
    assert compilations() == before


def test_another_core_has_the_same_keys(directory: Path) -> None:
    train("neuron:0")
    forget()
    train("neuron:1")
    assert counts() == (0, 2)


def test_nothing_to_compute_is_remembered_too() -> None:
    for expected in ((1, 0), (0, 1)):
        forget()
        x = torch.ones(3, device="neuron")
        y = torch.compile(lambda x: x.view(3, 1), backend="neuron", dynamic=False)(x)
        assert y.shape == (3, 1)
        assert counts() == expected


def test_the_neff_without_the_index_spares_the_compile(directory: Path) -> None:
    train()
    for path in directory.glob("index/*"):
        path.unlink()
    forget()
    before = compilations()
    train()
    assert counts() == (2, 0)
    assert sources() == ["cache", "cache"]
    assert compilations() == before


def neffs(directory: Path) -> list[Path]:
    """NEFFs of the graphs (the operators around them have theirs)."""
    cache = compiler.cache.NeffCache(str(directory))
    return [path for path in directory.rglob("*.neff") if (cache.manifest(path.stem) or {}).get("kind") == "graph"]


@pytest.mark.parametrize("fault", ["truncated", "writable file", "writable directory", "file of another user"])
def test_what_cannot_be_trusted_is_compiled_again(directory: Path, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    train()
    forget()
    for path in neffs(directory):
        if fault == "truncated":
            path.write_bytes(path.read_bytes()[:-100])
        elif fault == "writable file":
            path.chmod(0o666)
        elif fault == "file of another user":
            if os.geteuid() != 0:
                pytest.skip("only root can give a file away")
            os.chown(path, 12345, 12345)
    if fault == "writable directory":
        directory.chmod(0o777)
    before = compilations()
    with pytest.warns(CacheWarning, match="damaged" if fault == "truncated" else "not used"):
        train()
    assert counts() == (2, 0)
    assert compilations() >= before + 2


def test_another_compiler_or_processor_compiles_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiler's fingerprint names plugin, its version and the processor's features."""
    for part in ("cpu=", "plugin=", "pjrt="):
        assert part in _C.compiler_fingerprint()
    train()
    forget()
    monkeypatch.setattr(_C, "compiler_fingerprint", lambda: "another processor")
    before = compilations()
    train()
    assert counts() == (2, 0)
    assert compilations() >= before + 2


# -- graphs that need no trace ----------------------------------------------------------------------


def infer(x: torch.Tensor, factor: float = 3.0) -> tuple[torch.Tensor, torch.Tensor]:
    y = torch.nn.functional.layer_norm(x * factor, x.shape[-1:])
    x.add_(1)
    return y.sum(), y.t()


def run_inference(function: Any = infer, x: torch.Tensor | None = None) -> None:
    """Compiles `function` and calls it; the input is written."""
    x = torch.arange(12.0).reshape(3, 4) if x is None else x
    on_device = x.to("neuron") if x.is_contiguous() else x.t().to("neuron").t()
    expected = x.clone()
    with torch.no_grad():
        results = torch.compile(function, backend="neuron", fullgraph=True, dynamic=False)(on_device)
        assert_close([result.cpu() for result in results], list(function(expected)))
    assert_close(on_device.cpu(), expected)


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows with every trace of a graph without gradients."""
    traces: list[int] = []
    original = inference.trace
    monkeypatch.setattr(inference, "trace", lambda *arguments: traces.append(1) or original(*arguments))
    return traces


def test_a_warm_process_does_not_trace(traced: list[int]) -> None:
    run_inference()
    assert len(traced) == 1 and counts() == (1, 0)
    for _ in range(2):
        forget()
        run_inference()
        assert len(traced) == 1 and counts() == (0, 1)


def adam(device: str) -> list[torch.Tensor]:
    """What three steps leave behind: parameters, averages, and the count of steps, which is on the CPU."""
    torch.manual_seed(0)
    parameters = [torch.nn.Parameter(torch.randn(3, 4).to(device)) for _ in range(3)]
    optimizer = torch.optim.AdamW(parameters, lr=0.1, foreach=True)
    step = torch.compile(optimizer.step, backend="neuron") if device == "neuron" else optimizer.step
    for number in range(3):
        for parameter in parameters:
            parameter.grad = (parameter.detach() * (number + 1)).cos()
        step()
    state = [value for parameter in parameters for value in optimizer.state[parameter].values()]
    return [tensor.detach().cpu() for tensor in (*parameters, *state)]


def test_a_warm_process_does_not_trace_an_optimizer(traced: list[int]) -> None:
    expected = adam("cpu")
    for _ in range(2):
        forget()
        assert_close(adam("neuron"), expected, rtol=1e-4, atol=1e-5)
        assert len(traced) == 1


def test_graphs_with_results_on_the_host_and_inputs_from_there(traced: list[int]) -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y.mul_(2)
        return x + y.to(x.device), (x * 2).cpu()

    for expected in ((1, 0), (0, 1)):
        forget()
        x, y = torch.arange(4.0), torch.ones(4)
        with torch.no_grad():
            first, second = torch.compile(function, backend="neuron", dynamic=False)(x.to("neuron"), y)
        assert_close((first.cpu(), second, y), (x + 2, x * 2, torch.full((4,), 2.0)))
        assert second.device.type == "cpu"
        assert counts() == expected
    assert len(traced) == 1


def test_other_layouts_trace_after_all(traced: list[int]) -> None:
    run_inference()
    forget()
    run_inference()
    assert len(traced) == 1
    run_inference(x=torch.arange(12.0).reshape(4, 3).t())
    assert len(traced) == 2


def other_operators(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    y = torch.nn.functional.rms_norm(x * 3.0, x.shape[-1:])
    x.add_(1)
    return y.sum(), y.t()


@pytest.mark.parametrize("change", ["function", "constant", "dtype", "shape", "result", "version"])
def test_whatever_the_graph_depends_on_traces_again(
    change: str, traced: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    run_inference()
    forget()
    if change == "function":
        run_inference(other_operators)
    elif change == "constant":
        run_inference(lambda x: infer(x, 3.5))
    elif change == "dtype":
        run_inference(x=torch.arange(12.0, dtype=torch.float64).reshape(3, 4))
    elif change == "shape":
        run_inference(x=torch.arange(12.0).reshape(4, 3))
    elif change == "result":
        run_inference(lambda x: (infer(x)[0],))
    else:
        monkeypatch.setattr(_C, "compiler_fingerprint", lambda: "another processor")
        run_inference()
    assert len(traced) == 2


def test_another_decomposition_traces_again(traced: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    def function(x: torch.Tensor, classes: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.multi_margin_loss(x, classes)

    def another(x: torch.Tensor, *_: Any) -> torch.Tensor:
        return x.sum() + 5

    overload = torch.ops.aten.multi_margin_loss.default
    table = backend.decompositions()
    assert overload in table
    x, classes = torch.arange(12.0).reshape(3, 4), torch.tensor([0, 2, 1])
    for rule, expected in (
        (table[overload], function(x, classes)),
        (another, x.sum() + 5),
        (table[overload], function(x, classes)),
    ):
        forget()
        monkeypatch.setattr(backend, "decompositions", lambda rule=rule: {**table, overload: rule})
        with torch.no_grad():
            result = torch.compile(function, backend="neuron", dynamic=False)(x.to("neuron"), classes.to("neuron"))
        assert_close(result.cpu(), expected)
    assert len(traced) == 2


@pytest.mark.parametrize(
    "setting",
    [
        lambda: torch.autocast("neuron", torch.bfloat16),
        lambda: torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH),
    ],
)
def test_another_setting_traces_again(setting: Any, traced: list[int]) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.scaled_dot_product_attention(x, x, x)

    x = torch.randn(1, 2, 8, 4).to("neuron")
    for context in (contextlib.nullcontext, setting, contextlib.nullcontext, setting):
        forget()
        with torch.no_grad(), context():
            torch.compile(function, backend="neuron", dynamic=False)(x)
    assert len(traced) == 2


def test_functions_of_other_packages_are_traced_each_time(traced: list[int]) -> None:
    @torch._dynamo.allow_in_graph
    def tripled(x: torch.Tensor) -> torch.Tensor:
        return x * 3

    for expected in (1, 2):
        forget()
        with torch.no_grad():
            result = torch.compile(lambda x: tripled(x) + 1, backend="neuron", dynamic=False)(
                torch.arange(3.0).to("neuron")
            )
        assert_close(result.cpu(), torch.arange(3.0) * 3 + 1)
        assert len(traced) == expected


def test_a_missing_neff_is_traced_and_compiled(directory: Path, traced: list[int]) -> None:
    run_inference()
    forget()
    for path in neffs(directory):
        path.unlink()
    before = compilations()
    run_inference()
    assert len(traced) == 2 and counts() == (1, 0)
    assert compilations() > before


@pytest.mark.parametrize("fault", ["damaged line", "file of another user", "writable by others"])
def test_a_record_that_cannot_be_trusted_is_not_used(directory: Path, traced: list[int], fault: str) -> None:
    run_inference()
    forget()
    for path in directory.glob("index/*"):
        if fault == "damaged line":
            path.write_bytes(path.read_bytes().replace(b'"host_inputs"', b'"h0st_inputs"'))
        elif fault == "writable by others":
            path.chmod(0o666)
        else:
            if os.geteuid() != 0:
                pytest.skip("only root can give a file away")
            os.chown(path, 12345, 12345)
    with contextlib.nullcontext() if fault == "damaged line" else pytest.warns(CacheWarning, match="not used"):
        run_inference()
    assert len(traced) == 2


def test_artifacts_spare_the_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, traced: list[int]) -> None:
    run_inference()
    artifacts = torch.compiler.save_cache_artifacts()
    assert artifacts is not None
    monkeypatch.setenv("TORCH_NEURONX_NEFF_CACHE_DIR", str(tmp_path / "another"))
    forget()
    torch.compiler.load_cache_artifacts(artifacts[0])
    run_inference()
    assert len(traced) == 1 and counts() == (0, 1)


# -- artifacts -------------------------------------------------------------------------------------


def saved() -> bytes:
    artifacts = torch.compiler.save_cache_artifacts()
    assert artifacts is not None
    content, info = artifacts
    assert len(info.artifacts["neuron_graph"]) == 2
    return content


@pytest.mark.parametrize("disabled", ["0", "1"])
def test_artifacts_carry_the_graphs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, disabled: str) -> None:
    """Into an empty cache, and into a process that keeps none."""
    train()
    content = saved()
    monkeypatch.setenv("TORCH_NEURONX_NEFF_CACHE_DIR", str(tmp_path / "another"))
    monkeypatch.setenv("TORCH_NEURONX_NEFF_DISABLE_CACHE", disabled)
    forget()
    info = torch.compiler.load_cache_artifacts(content)
    assert info is not None and len(info.artifacts["neuron_graph"]) == 2
    train()
    assert counts() == (0, 2)
    assert len(neffs(tmp_path / "another")) == (0 if disabled == "1" else 2)
    assert len(saved()) > 0  # what was found in the index is carried on


def test_artifacts_of_another_version_are_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, messages) -> None:
    train()
    with monkeypatch.context() as patch:
        patch.setattr(cache_artifacts, "_version", lambda: "another")
        torch.compiler._cache.CacheArtifactManager.clear()
        torch._dynamo.reset()
        train()
        content = saved()
    monkeypatch.setenv("TORCH_NEURONX_NEFF_CACHE_DIR", str(tmp_path / "another"))
    forget()
    torch.compiler.load_cache_artifacts(content)
    assert messages.count("another version")
    train()
    assert counts() == (2, 0)


def test_damaged_artifacts_are_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, messages) -> None:
    train()
    content = saved()
    monkeypatch.setenv("TORCH_NEURONX_NEFF_CACHE_DIR", str(tmp_path / "another"))
    forget()
    loaded = torch.compiler._cache.CacheArtifactManager.deserialize(content)
    assert loaded is not None
    for artifact in loaded["neuron_graph"]:
        cache_artifacts.NeuronGraphArtifact(artifact.key, artifact.content[:-1] + b"?").populate_cache()
    assert messages.count("checksum") == 2
    cache_artifacts.NeuronGraphArtifact("00", b"no JSON").populate_cache()
    assert messages.count("is damaged")
    train()
    assert counts() == (2, 0)


PROCESS = """
import sys, torch
from torch_neuronx.neuron_dynamo_backend import get_dynamo_metrics
loaded, written, device = sys.argv[1:]
if loaded:
    assert torch.compiler.load_cache_artifacts(open(loaded, "rb").read()) is not None
x = torch.arange(6.0).to(device)
y = torch.compile(lambda x: (x * 3).cos().cumsum(0), backend="neuron", fullgraph=True, dynamic=False)(x)
torch.testing.assert_close(y.cpu(), (torch.arange(6.0) * 3).cos().cumsum(0))
(graph,) = get_dynamo_metrics()["per_graph"]
content, info = torch.compiler.save_cache_artifacts()
if written:
    open(written, "wb").write(content)
print(graph["source"], graph["neff"], *info.artifacts["neuron_graph"])
"""


def test_another_directory_rank_and_core_have_the_same_keys(tmp_path: Path) -> None:
    """The same program at another path, as another rank, on another core; the second loads artifacts first."""
    lines = []
    for rank in (0, 1):
        place = tmp_path / f"machine{rank}"
        place.mkdir()
        (place / "program.py").write_text("\n" * rank + PROCESS)
        environment = {
            **os.environ,
            "TORCH_NEURONX_NEFF_CACHE_DIR": str(place / "cache"),
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
        }
        artifacts = str(tmp_path / "artifacts")
        arguments = ["", artifacts, "neuron"] if rank == 0 else [artifacts, "", "neuron:3"]
        result = subprocess.run(
            [sys.executable, "program.py", *arguments],
            cwd=place,
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert result.returncode == 0, result.stderr
        lines.append(result.stdout.split())
    assert lines[0][0] == "compiler" and lines[1][0] == "index"
    assert lines[0][1:] == lines[1][1:]


# -- neuron-cache ----------------------------------------------------------------------------------


def test_ls_and_explain_name_model_function_and_the_argument_that_differs(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    set_model_name("wave")
    try:
        train(size=6)
        train(size=7)
    finally:
        set_model_name("")
    assert neuron_cache.main(["--directory", str(directory), "ls"]) == 0
    listed = capsys.readouterr().out
    assert listed.count("wave: graph") == 4
    assert listed.count("(backward) of function") == 2
    manifests = [json.loads(path.with_suffix(".json").read_text()) for path in neffs(directory)]
    (latest,) = [m for m in manifests if m["role"] == "forward" and m["arguments"][0][1] == "float32[7]"]
    assert neuron_cache.main(["--directory", str(directory), "explain", latest["key"]]) == 0
    explained = capsys.readouterr().out
    for expected in ("wave", "test_compile_cache.py:", "aten::sin", "L['x'] is float32[7], was float32[6]"):
        assert expected in explained
    assert explained.count("unlike") == 1


def test_explain_names_the_operators_when_no_argument_differs(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def branch(x: torch.Tensor, flag: bool) -> torch.Tensor:
        return x.sin() if flag else x.cos()

    compiled = torch.compile(branch, backend="neuron", dynamic=False)
    for flag in (True, False):
        compiled(torch.ones(3, device="neuron"), flag)
    for path in neffs(directory):
        assert neuron_cache.main(["--directory", str(directory), "explain", path.stem]) == 0
    explained = capsys.readouterr().out
    assert "the graph has aten::cos and has no aten::sin" in explained
    assert "the graph has aten::sin and has no aten::cos" in explained
