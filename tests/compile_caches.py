# SPDX-License-Identifier: Apache-2.0
"""What tests of the caches share: directories of their own, and a process that has forgotten what it compiled."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from torch_neuronx import compiler, metrics
from torch_neuronx.neuron_dynamo_backend import get_dynamo_metrics, reset_dynamo_metrics


def forget() -> None:
    """Leaves this process as a new one: what was compiled is on disk only."""
    torch.neuron.synchronize()
    torch._dynamo.reset()
    torch.compiler._cache.CacheArtifactManager.clear()
    compiler.target.current.cache_clear()
    compiler.neff_cache.cache_clear()
    compiler.program_index.cache_clear()
    compiler.compile._table.clear()
    reset_dynamo_metrics()


def empty_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A fixture: caches of its own for each test. Returns the NEFF cache's directory."""
    monkeypatch.setenv("TORCH_NEURONX_NEFF_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "torch"))
    forget()
    yield tmp_path / "cache"
    monkeypatch.undo()
    forget()


def compilations() -> int:
    return metrics.get_counter_value("CompilationCache.TotalCompilations") or 0


def counts() -> tuple[int, int]:
    """(graphs lowered, graphs found in the index)."""
    found = get_dynamo_metrics()
    return found["graphs_lowered"], found["graphs_from_index"]
