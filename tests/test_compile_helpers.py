# SPDX-License-Identifier: Apache-2.0
"""Metrics, saved artifacts and the variables that steer compiled graphs."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

from torch_neuronx import neuron_dynamo_backend as helpers
from torch_neuronx.dynamo import compile
from torch_neuronx.log import OncePer


@pytest.fixture(autouse=True)
def fresh_dynamo():
    torch._dynamo.reset()
    helpers.reset_dynamo_metrics()
    yield
    helpers.set_model_name("")
    torch._dynamo.reset()


def compiled(function):
    return torch.compile(function, backend="neuron", fullgraph=True, dynamic=False)


def wave(x: torch.Tensor) -> torch.Tensor:
    return (x * 5).sin().cumsum(0)


def test_metrics_count_graphs_by_model_and_role():
    helpers.set_model_name("waves")
    assert helpers.get_model_name() == "waves"
    x = torch.ones(11, device="neuron", requires_grad=True)
    compiled(wave)(x).sum().backward()
    found = helpers.get_dynamo_metrics()
    assert found["graphs"] == 2
    assert found["graphs_lowered"] + found["graphs_from_index"] == 2
    assert [(g["model"], g["role"]) for g in found["per_graph"]] == [("waves", "forward"), ("waves", "backward")]
    for graph in found["per_graph"]:
        assert "of wave" in graph["graph"] and "test_compile_helpers.py:" in graph["line"]
        assert graph["neff_bytes"] > 0 and graph["wait_seconds"] >= 0
    helpers.reset_dynamo_metrics()
    assert helpers.get_dynamo_metrics()["graphs"] == 0 == len(helpers.get_dynamo_metrics()["per_graph"])


@pytest.mark.parametrize(
    "variables, rank",
    [({"TORCH_NEURONX_ENABLED_METRIC_TABLES": "graph_stats"}, 0), ({"TORCH_NEURONX_METRICS_ENABLED": "1"}, 3)],
)
def test_the_table_has_a_row_for_each_graph(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], rank: int
):
    from torch_neuronx import metrics

    monkeypatch.setattr(metrics, "_enabled", None)
    for name, value in {**variables, "TORCH_NEURONX_METRICS_DIR": str(tmp_path / "new"), "RANK": str(rank)}.items():
        monkeypatch.setenv(name, value)
    function = compiled(wave)
    for size in (5, 6, 5):
        function(torch.ones(size, device="neuron"))
    (path,) = (tmp_path / "new").iterdir()
    assert path.name == f"metric_table_graph_stats_rank{rank}.csv"
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 2
    for row, graph in zip(rows, helpers.get_dynamo_metrics()["per_graph"], strict=True):
        assert row == {name: str(value) for name, value in graph.items()}


def test_no_table_unless_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TORCH_NEURONX_METRICS_DIR", str(tmp_path))
    compiled(wave)(torch.ones(5, device="neuron"))
    assert not list(tmp_path.iterdir())


def test_an_unknown_table_names_those_that_exist(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TORCH_NEURONX_ENABLED_METRIC_TABLES", "graph_stats,nonsense")
    with pytest.raises(ValueError, match="no such table: nonsense; there are graph_stats"):
        compiled(wave)(torch.ones(5, device="neuron"))


def test_an_unwritable_table_costs_one_warning(monkeypatch: pytest.MonkeyPatch, messages):
    monkeypatch.setenv("TORCH_NEURONX_ENABLED_METRIC_TABLES", "graph_stats")
    monkeypatch.setenv("TORCH_NEURONX_METRICS_DIR", "/proc/metrics")
    function = compiled(wave)
    for size in (5, 6):
        assert_close(function(torch.zeros(size, device="neuron")).cpu(), torch.zeros(size))
    assert messages.count("cannot be written") == 1


def test_artifacts_are_kept_by_model_and_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Also for programs that are in the cache."""
    monkeypatch.setenv("TORCH_NEURONX_DEBUG_DIR", str(tmp_path))
    compiled(wave)(torch.ones(8, device="neuron"))
    torch.neuron.synchronize()
    assert not list(tmp_path.iterdir())
    torch._dynamo.reset()
    monkeypatch.setenv("TORCH_NEURONX_PRESERVE_COMPILATION_ARTIFACTS", "1")
    monkeypatch.setenv("RANK", "2")
    helpers.set_model_name("my/model")
    compiled(wave)(torch.ones(8, device="neuron"))
    (directory,) = (tmp_path / "my_model" / "rank2").iterdir()
    assert directory.name.startswith("graph_0_0_inference_of_wave-")
    assert {path.name for path in directory.iterdir()} == {
        "graph.txt",
        "program.mlir",
        "program.neff",
        "description.json",
    }
    assert "torch.ops.aten.sin.default" in (directory / "graph.txt").read_text()
    assert "stablehlo.sine" in (directory / "program.mlir").read_text()
    assert len((directory / "program.neff").read_bytes()) > 1024


# -- tensors on the CPU ----------------------------------------------------------------------------


def scaled(x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    return x + (table * 2).to(x.device)


def test_inputs_on_the_cpu_are_copied_with_one_warning(messages, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(compile, "_copied_inputs", OncePer())
    function = compiled(scaled)
    for _ in range(2):
        result = function(torch.ones(3, device="neuron"), torch.ones(3))
        assert_close(result.cpu(), torch.full((3,), 3.0))
    assert messages.count("inputs on the CPU") == 1


def test_inputs_on_the_cpu_may_be_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TORCH_NEURONX_DYNAMO_DISABLE_CPU_AUTOCOPY", "1")
    with pytest.raises(RuntimeError, match=r"\[3\].*TORCH_NEURONX_DYNAMO_DISABLE_CPU_AUTOCOPY=1.*\.to\("):
        compiled(scaled)(torch.ones(3, device="neuron"), torch.ones(3))


@pytest.mark.parametrize("retain, device", [("0", "cpu"), ("1", "neuron")])
def test_where_results_for_the_cpu_stay(monkeypatch: pytest.MonkeyPatch, retain: str, device: str):
    monkeypatch.setenv("TORCH_NEURONX_RETAIN_DEVICE_MODE", retain)
    result = compiled(lambda x: (x + 1).cpu())(torch.ones(3, device="neuron"))
    assert result.device.type == device
    assert_close(result.cpu(), torch.full((3,), 2.0))
