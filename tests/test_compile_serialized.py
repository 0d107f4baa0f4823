# SPDX-License-Identifier: Apache-2.0
"""Compiled graphs in PyTorch's own files: AOTAutograd's cache, functions compiled ahead of time, Dynamo's cache."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters
from torch.testing import assert_close

from tests.compile_caches import compilations, counts, empty_caches, forget
from torch_neuronx import cache_artifacts
from torch_neuronx.dynamo import serialized
from torch_neuronx.dynamo.compile import CompiledGraph
from torch_neuronx.dynamo.serialized import SerializedGraphError
from torch_neuronx.log import OncePer

directory = pytest.fixture(autouse=True)(empty_caches)


def model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.GELU(), torch.nn.LayerNorm(8), torch.nn.Linear(8, 3))


def train_step(device: str = "neuron", **options: Any) -> list[torch.Tensor]:
    """The loss and the gradients of a step, compiled on the device, plain on the CPU."""
    module = model().to(device)
    forward = torch.compile(module, backend="neuron", fullgraph=True, dynamic=False, **options)
    x = torch.linspace(-1, 1, 24).reshape(4, 6).to(device)
    loss = (forward if device == "neuron" else module)(x).square().mean()
    loss.backward()
    return [value.cpu() for value in (loss.detach(), *(p.grad for p in module.parameters() if p.grad is not None))]


def found() -> dict[str, int]:
    """What AOTAutograd's cache was asked, since the last call."""
    seen = {key: value for key, value in counters["aot_autograd"].items() if key.startswith("autograd_cache")}
    counters.clear()
    return seen


@pytest.fixture(autouse=True)
def no_counts():
    counters.clear()
    yield
    counters.clear()


# -- AOTAutograd's cache ---------------------------------------------------------------------------


def test_training_graphs_are_not_traced_twice() -> None:
    expected = train_step("cpu")
    assert_close(train_step(), expected)
    assert found() == {"autograd_cache_miss": 1, "autograd_cache_saved": 1}
    forget()
    assert_close(train_step(), expected)
    assert found() == {"autograd_cache_hit": 1}
    assert counts() == (0, 2)


def test_another_graph_is_another_entry() -> None:
    train_step()
    forget()
    found()
    x = torch.ones(4, 6, device="neuron", requires_grad=True)
    torch.compile(lambda x: x.sin().sum(), backend="neuron", dynamic=False)(x).backward()
    assert found() == {"autograd_cache_miss": 1, "autograd_cache_saved": 1}


def test_an_entry_without_its_programs_is_a_miss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = train_step()
    monkeypatch.setenv("TORCH_NEURONX_NEFF_CACHE_DIR", str(tmp_path / "another"))
    forget()
    found()
    assert_close(train_step(), expected)
    assert found() == {"autograd_cache_miss": 1, "autograd_cache_saved": 1}
    assert counts() == (2, 0)


def test_an_entry_of_another_version_is_not_found() -> None:
    train_step()
    forget()
    found()
    serialized.program_index().version = "another"
    train_step()
    assert found() == {"autograd_cache_miss": 1, "autograd_cache_saved": 1}


def test_a_damaged_entry_is_compiled_anew(tmp_path: Path) -> None:
    expected = train_step()
    entries = [path for path in (tmp_path / "torch" / "aotautograd").rglob("*") if path.is_file()]
    assert len(entries) == 1
    entries[0].write_bytes(entries[0].read_bytes()[:100])
    forget()
    found()
    assert_close(train_step(), expected)
    assert found() == {"autograd_cache_miss": 1, "autograd_cache_saved": 1}


@pytest.mark.parametrize("fault", ["writable by others", "of another user"])
def test_a_directory_of_others_is_not_used(tmp_path: Path, messages, fault: str) -> None:
    """What lies there is unpickled."""
    expected = train_step()
    folder = tmp_path / "torch" / "aotautograd"
    if fault == "writable by others":
        folder.chmod(0o777)
    elif os.geteuid() == 0:
        os.chown(folder, 12345, 12345)
    else:
        pytest.skip("only root gives files away")
    forget()
    found()
    assert_close(train_step(), expected)
    assert found() == {}
    assert messages.count("AOTAutograd's cache is not used") == 1


def test_disabled_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    with torch._functorch.config.patch(enable_autograd_cache=False):
        train_step()
    assert found() == {}


def test_graphs_that_are_not_described_by_their_key_are_left_out() -> None:
    library = torch.library.Library("serialized_test", "DEF")
    library.define("twice(Tensor x) -> Tensor")
    library.impl("twice", lambda x: x * 2, "CompositeImplicitAutograd")
    x = torch.ones(3, device="neuron", requires_grad=True)
    y = torch.compile(torch.ops.serialized_test.twice, backend="neuron", fullgraph=True, dynamic=False)(x)
    y.sum().backward()
    assert_close(x.grad.cpu() if x.grad is not None else None, torch.full((3,), 2.0))
    assert found() == {}
    library._destroy()


def test_checkpointing_and_none_gradients_from_the_cache() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        def block(x: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.dropout(x.sin().exp(), 0.0) * y.detach()

        return torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False).sum()

    def gradient(device: str) -> torch.Tensor:
        x = torch.linspace(0, 1, 12).to(device).requires_grad_()
        y = torch.linspace(1, 2, 12).to(device).requires_grad_()
        run = torch.compile(function, backend="neuron", fullgraph=True, dynamic=False) if device != "cpu" else function
        run(x, y).backward()
        assert y.grad is None and x.grad is not None
        return x.grad.cpu()

    for _ in range(2):
        assert_close(gradient("neuron"), gradient("cpu"))
        forget()
    assert "autograd_cache_hit" in found()


def test_artifacts_carry_training_graphs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = train_step()
    artifacts = torch.compiler.save_cache_artifacts()
    assert artifacts is not None
    for name, folder in (("TORCH_NEURONX_NEFF_CACHE_DIR", "neff2"), ("TORCHINDUCTOR_CACHE_DIR", "torch2")):
        monkeypatch.setenv(name, str(tmp_path / folder))
    forget()
    found()
    torch.compiler.load_cache_artifacts(artifacts[0])
    assert_close(train_step(), expected)
    assert found() == {"autograd_cache_hit": 1}
    assert counts() == (0, 2)


# -- compiled ahead of time ------------------------------------------------------------------------


def scaled(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (x * 3).cos() @ y + 1


def arguments(device: str = "neuron") -> tuple[torch.Tensor, torch.Tensor]:
    return torch.linspace(0, 1, 12).reshape(3, 4).to(device), torch.linspace(1, 2, 8).reshape(4, 2).to(device)


def compiled_ahead(function: Any, arguments: tuple[Any, ...], path: Path) -> None:
    compiled = torch.compile(function, backend="neuron", fullgraph=True, dynamic=False)
    compiled.aot_compile((arguments, {})).save_compiled_function(str(path))


def load(path: Path) -> Any:
    with open(path, "rb") as file:
        return torch.compiler.load_compiled_function(file)


def test_a_function_compiled_ahead_carries_its_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled_ahead(scaled, arguments(), tmp_path / "function")
    monkeypatch.setenv("TORCH_NEURONX_NEFF_CACHE_DIR", str(tmp_path / "another"))
    forget()
    before = compilations()
    function = load(tmp_path / "function")
    assert_close(function(*arguments()).cpu(), scaled(*arguments("cpu")))
    assert_close(function(*arguments()).cpu(), scaled(*arguments("cpu")))
    assert compilations() == before and counts() == (0, 1)


def test_a_module_compiled_ahead(tmp_path: Path) -> None:
    module = model().to("neuron").eval()
    x = torch.linspace(-1, 1, 24).reshape(4, 6)
    options = {"guard_filter_fn": torch.compiler.keep_tensor_guards_unsafe}
    with torch.no_grad():
        compiled = torch.compile(module, backend="neuron", fullgraph=True, dynamic=False, options=options)
        function = compiled.forward.aot_compile(((x.to("neuron"),), {}))
        function.save_compiled_function(str(tmp_path / "module"), external_data={"module": module})
        forget()
        other = model().to("neuron").eval()
        other[0].weight.mul_(2)
        expected = other(x.to("neuron")).cpu()
        with open(tmp_path / "module", "rb") as file:
            loaded = torch.compiler.load_compiled_function(file, external_data={"module": other})
        assert_close(loaded(x.to("neuron")).cpu(), expected)
    assert counts() == (0, 1)


def test_a_training_function_compiled_ahead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def leaves(device: str) -> list[torch.Tensor]:
        return [value.requires_grad_() for value in arguments(device)]

    compiled_ahead(scaled, tuple(leaves("neuron")), tmp_path / "function")
    forget()
    found, expected = leaves("neuron"), leaves("cpu")
    load(tmp_path / "function")(*found).sum().backward()
    scaled(*expected).sum().backward()
    for a, b in zip(found, expected, strict=True):
        assert a.grad is not None
        assert_close(a.grad.cpu(), b.grad)
    assert counts() == (0, 2)


def test_a_function_compiled_ahead_by_another_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(cache_artifacts, "_version", lambda: "another")
        compiled_ahead(scaled, arguments(), tmp_path / "function")
    monkeypatch.setenv("TORCH_NEURONX_NEFF_CACHE_DIR", str(tmp_path / "another"))
    forget()
    with pytest.raises(SerializedGraphError, match="another version"):
        load(tmp_path / "function")


# -- as bytes --------------------------------------------------------------------------------------


def compiled_graph(function: Any, *arguments: torch.Tensor) -> CompiledGraph:
    """What `torch.compile` makes of a function without gradients."""
    kept: list[CompiledGraph] = []

    def backend(gm: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
        from torch_neuronx.dynamo import neuron

        compiled = neuron(gm, inputs)
        kept.append(compiled.graph)
        return compiled

    torch.compile(function, backend=backend, fullgraph=True, dynamic=False)(*arguments)
    (graph,) = kept
    return graph


def test_bytes_of_a_graph_know_its_layouts() -> None:
    x, y = arguments()
    graph = compiled_graph(scaled, x, y.t().contiguous().t())
    copy = serialized.load(serialized.dump(graph))
    assert copy.plan_record() == graph.plan_record()
    assert json.loads(serialized.dump(graph).partition(b"\n")[0])["origin"][0].endswith("scaled")


def offset_view(x: torch.Tensor) -> torch.Tensor:
    """The same values and strides, from an odd place in memory."""
    view = torch.zeros(x.numel() + 1, dtype=x.dtype, device=x.device)[1:].view(x.shape)
    return view.copy_(x)


def columns(x: torch.Tensor) -> torch.Tensor:
    """The same values, as columns of a wider matrix."""
    return torch.zeros(x.shape[0], x.shape[1] + 3, dtype=x.dtype, device=x.device)[:, 2:-1].copy_(x)


@pytest.mark.parametrize("found", [torch.clone, offset_view, columns])
@pytest.mark.parametrize("expected", [torch.clone, offset_view, columns])
def test_inputs_of_other_layouts_are_copied(
    messages, monkeypatch: pytest.MonkeyPatch, expected: Any, found: Any
) -> None:
    """A graph that was loaded cannot be lowered again."""
    monkeypatch.setattr("torch_neuronx.dynamo.compile._rearranged", OncePer())

    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return x @ y

    x, y = torch.linspace(0, 1, 120).reshape(10, 12).to("neuron"), torch.linspace(1, 2, 24).reshape(12, 2).to("neuron")
    graph = compiled_graph(function, expected(x), y)
    loaded = serialized.load(serialized.dump(graph))
    given = found(x)
    for count in (1, 2):
        (result,) = loaded([given, y])
        assert_close(given.cpu(), x.cpu() + count)
        assert_close(result.cpu(), (x.cpu() + count) @ y.cpu())
    assert messages.count("are copied at every call") == (expected is not found)


def test_work_for_the_host_is_in_the_bytes() -> None:
    def function(x: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
        step.add_(1)
        return x / step

    x, step = torch.ones(3, device="neuron"), torch.zeros(())
    loaded = serialized.load(serialized.dump(compiled_graph(function, x, step)))
    (result,) = loaded([step, x])  # in the order of their use
    assert_close((result.cpu(), step), (torch.full((3,), 0.5), torch.tensor(2.0)))


# -- Dynamo's cache --------------------------------------------------------------------------------

PROGRAM = """
import torch
from torch._dynamo.utils import counters
from torch_neuronx.neuron_dynamo_backend import get_dynamo_metrics

def function(x, y):
    return (x * 3).cos() @ y + 1

x, y = torch.linspace(0, 1, 12).reshape(3, 4), torch.linspace(1, 2, 8).reshape(4, 2)
compiled = torch.compile(function, backend="neuron", fullgraph=True, dynamic=False)
torch.testing.assert_close(compiled(x.to("neuron"), y.to("neuron")).cpu(), function(x, y))
print(*counters["dynamo_cache"], counters["stats"]["unique_graphs"], get_dynamo_metrics()["graphs_lowered"])
torch.compiler.save_cache_artifacts()
"""


def test_dynamo_keeps_graph_guards_and_bytecode(tmp_path: Path) -> None:
    """torch._dynamo.config.caching_precompile."""
    (tmp_path / "program.py").write_text(PROGRAM)
    lines = []
    for _ in range(2):
        result = subprocess.run(
            [sys.executable, "program.py"],
            cwd=tmp_path,
            env={**os.environ, "TORCH_CACHING_PRECOMPILE": "1"},
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert result.returncode == 0, result.stderr
        lines.append(result.stdout.strip())
    assert lines == ["dynamo_cache_miss 1 1", "dynamo_cache_hit 0 0"]
