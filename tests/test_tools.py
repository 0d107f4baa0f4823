# SPDX-License-Identifier: Apache-2.0
"""neuron-cache, neuron-ls, the environment table, and generated documentation."""

from __future__ import annotations

import json
import logging
import os
import time
from pathlib import Path

import pytest
import torch

from torch_neuronx import environment, log, metrics
from torch_neuronx.compiler.cache import NeffCache, describe_parts, key_of
from torch_neuronx.tools import neuron_cache, neuron_ls

ROOT = Path(__file__).parent.parent


@pytest.fixture
def cache(tmp_path: Path) -> NeffCache:
    """Three entries: two additions that differ in their shapes, one multiplication."""
    cache = NeffCache(str(tmp_path / "cache"))
    for operator, shape, size in (
        ("aten::add.Tensor", "[2]", 1000),
        ("aten::add.Tensor", "[3]", 2000),
        ("aten::mul.Tensor", "[2]", 3000),
    ):
        parts = [("program", f"{operator}{shape}".encode()), ("compiler", b"one")]
        cache.store(
            key_of(parts),
            b"x" * size,
            {
                "operator": operator,
                "line": "model.py:3",
                "inputs": [f"float32{shape}"],
                "outputs": [f"float32{shape}"],
                "compile_seconds": 0.02,
                "parts": describe_parts(parts),
            },
        )
    return cache


def run(cache: NeffCache, *arguments: str) -> int:
    return neuron_cache.main(["--directory", cache.directory or "", *arguments])


def keys(cache: NeffCache) -> list[str]:
    return list(neuron_cache.keys(cache.directory or ""))


def test_ls(cache: NeffCache, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(cache, "ls") == 0
    output = capsys.readouterr().out
    assert output.count("aten::add.Tensor") == 2 and output.count("aten::mul.Tensor") == 1
    assert "float32[3] -> float32[3]" in output
    assert "3 programs" in output


def test_ls_of_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(NeffCache(str(tmp_path / "absent")), "ls") == 0
    assert "0 programs" in capsys.readouterr().out


def test_explain_says_what_differs(cache: NeffCache, capsys: pytest.CaptureFixture[str]) -> None:
    key = next(k for k in keys(cache) if (cache.manifest(k) or {})["inputs"] == ["float32[3]"])
    assert run(cache, "explain", key[:12]) == 0
    output = capsys.readouterr().out
    for expected in (key, "aten::add.Tensor", "model.py:3", "(float32[2] -> float32[2]): inputs; outputs"):
        assert expected in output
    assert "aten::mul" not in output
    assert run(cache, "explain", "nonsense") == 1


def test_verify_finds_and_mends_damage(cache: NeffCache, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(cache, "verify") == 0
    first, second, third = keys(cache)
    Path(cache.path(first)).write_bytes(b"damaged")
    os.unlink(cache.path(second, ".json"))
    assert run(cache, "verify") == 1
    output = capsys.readouterr().out
    assert "checksum" in output and ".json is missing" in output and "2 damaged" in output
    assert run(cache, "verify", "--fix") == 0
    assert keys(cache) == [third]
    assert run(cache, "verify") == 0


def test_prune_by_age_and_size(cache: NeffCache) -> None:
    first, *others = sorted(keys(cache), key=lambda key: os.stat(cache.path(key)).st_size)
    long_ago = time.time() - 40 * 86400
    for suffix in (".neff", ".json"):
        os.utime(cache.path(first, suffix), (long_ago, long_ago))
    assert run(cache, "prune") == 2
    assert run(cache, "prune", "--older-than", "30d") == 0
    assert sorted(keys(cache)) == sorted(others)
    assert run(cache, "prune", "--max-size", "1G") == 0
    assert len(keys(cache)) == 2
    assert run(cache, "prune", "--max-size", "4k") == 0
    assert len(keys(cache)) == 1
    assert run(cache, "clear") == 0
    assert keys(cache) == []


@pytest.mark.parametrize("text, seconds", [("30d", 30 * 86400), ("12h", 43200), ("1.5m", 90)])
def test_ages(text: str, seconds: float) -> None:
    assert neuron_cache.parse_age(text) == seconds


@pytest.mark.parametrize("text, size", [("500M", 500 << 20), ("2G", 2 << 30), ("10", 10), ("1.5KiB", 1536)])
def test_sizes(text: str, size: int) -> None:
    assert neuron_cache.parse_size(text) == size


def test_a_directory_of_others_is_refused(cache: NeffCache, capsys: pytest.CaptureFixture[str]) -> None:
    os.chmod(cache.directory or "", 0o777)
    assert run(cache, "ls") == 1
    assert "may be written by others" in capsys.readouterr().err


# -- neuron-ls -----------------------------------------------------------------------------------


def test_neuron_ls_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert neuron_ls.main(["-j"]) == 0
    devices = json.loads(capsys.readouterr().out)
    assert sum(device["nc_count"] for device in devices) == environment.get("TORCH_NEURONX_SOFTWARE_CORES")
    assert [core for device in devices for core in device["neuroncore_ids"]] == list(
        range(environment.get("TORCH_NEURONX_SOFTWARE_CORES"))
    )
    fields = "neuron_device bdf cpu_affinity numa_node connected_to nc_count logical_neuroncore_config memory_size"
    for device in devices:
        assert set(device) == {*fields.split(), "neuroncore_ids", "neuron_processes"}
        assert device["memory_size"] == device["nc_count"] * torch.neuron.get_device_properties().total_memory


def test_neuron_ls_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert neuron_ls.main(["-a", "-t"]) == 0
    output = capsys.readouterr().out
    assert output.startswith("instance-type: software")
    for expected in ("logical-neuroncore-config: 2", "NEURON DEVICE", "CONNECTED DEVICES", "COMMAND"):
        assert expected in output


def test_devices_of_other_sizes() -> None:
    found = neuron_ls.devices(6, 2, 10)
    assert [device["nc_count"] for device in found] == [4, 2]
    assert [device["memory_size"] for device in found] == [40, 20]
    assert [device["connected_to"] for device in found] == [[1], [0]]


# -- environment, metrics, documents ----------------------------------------------------------------


def test_nonsense_in_the_environment_names_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_NEURONX_NEFF_CACHE_LOCK_TIMEOUT", "soon")
    with pytest.raises(ValueError, match="TORCH_NEURONX_NEFF_CACHE_LOCK_TIMEOUT is 'soon'"):
        environment.get("TORCH_NEURONX_NEFF_CACHE_LOCK_TIMEOUT")


def test_a_url_is_no_cache_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_NEURONX_NEFF_CACHE_DIR", "s3://bucket/programs")
    with pytest.raises(ValueError, match=r"TORCH_NEURONX_NEFF_CACHE_DIR is 's3://bucket/programs': .* not a URL"):
        environment.get("TORCH_NEURONX_NEFF_CACHE_DIR")


@pytest.mark.parametrize("level, shown", [("1", ""), ("2", "a reason\n")])
def test_the_log_level_shows_more_without_any_setup(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], level: str, shown: str
) -> None:
    root = logging.getLogger("torch_neuronx")
    monkeypatch.setenv("TORCH_NEURONX_LOG_LEVEL", level)
    monkeypatch.setattr(root, "handlers", [])
    before = root.level
    root.setLevel(logging.NOTSET)
    try:
        log.logger("torch_neuronx.test").info("a reason")
    finally:
        root.setLevel(before)
    assert capsys.readouterr().err == shown


@pytest.mark.parametrize("text, level", [("", None), ("-O2", 2), ("O3", 3), ("1", 1)])
def test_optimize_levels(monkeypatch: pytest.MonkeyPatch, text: str, level: int | None) -> None:
    monkeypatch.setenv("NEURON_COMPILER_OPT_LEVEL", text)
    assert environment.get("NEURON_COMPILER_OPT_LEVEL") == level


def test_metrics_count_always_and_record_on_request() -> None:
    names = set(metrics.get_counter_names())
    assert {f"CompilationCache.{n}" for n in ("InMemoryHits", "PersistentMisses", "TotalCompilations")} <= names
    enabled = metrics.is_enabled()
    try:
        metrics.set_enabled(False)
        metrics.record("Test.Duration", 1.0)
        assert metrics.get_metric_data("Test.Duration") is None
        metrics.set_enabled(True)
        metrics.record("Test.Duration", 1.0)
        metrics.record("Test.Duration", 3.0)
        assert metrics.get_metric_data("Test.Duration") == (2, 4.0, [1.0, 3.0])
        assert "Test.Duration: 2 samples, 4.000 s, median 2000.00 ms" in metrics.report()
        assert metrics.get_counter_value("no such counter") is None
    finally:
        metrics.set_enabled(enabled)


def test_generated_documents_are_current() -> None:
    from docs import generate

    for name, text in generate.documents().items():
        assert (ROOT / "docs" / name).read_text() == text, f"docs/{name} is old: run `make docs`"
