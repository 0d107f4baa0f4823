# SPDX-License-Identifier: Apache-2.0
"""The environment variables that the Python package reads: one table, read at the moment of use.

Variables that only the extension reads are listed too (`reader="extension"`), so that
`docs/environment.md`, which is generated from this table, is complete.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, NamedTuple

# What TORCH_NEURONX_ENABLED_METRIC_TABLES may name.
METRIC_TABLES = frozenset({"graph_stats"})


class Variable(NamedTuple):
    default: str
    convert: Callable[[str], Any]
    meaning: str
    reader: str = "package"


def _flag(text: str) -> bool:
    lowered = text.strip().lower()
    if lowered in ("", "0", "false", "off", "no"):
        return False
    if lowered in ("1", "true", "on", "yes"):
        return True
    raise ValueError("expected 0 or 1")


def _log_level(text: str) -> int:
    level = int(text)
    if not 0 <= level <= 3:
        raise ValueError("expected 0 (errors) to 3 (debug)")
    return level


def _fallback(text: str) -> str:
    if text not in ("warn", "error", "silent"):
        raise ValueError("expected warn, error or silent")
    return text


def _directory(text: str) -> str:
    if "://" in text:
        raise ValueError("expected a directory of this machine, not a URL")
    return text


def _metric_tables(text: str) -> frozenset[str]:
    names = frozenset(name.strip() for name in text.split(",") if name.strip())
    if unknown := sorted(names - METRIC_TABLES):
        raise ValueError(f"no such table: {', '.join(unknown)}; there are {', '.join(sorted(METRIC_TABLES))}")
    return names


def _optimize_level(text: str) -> int | None:
    """`-O1`, `O1` or `1`; None when unset: each kind of program has its own default."""
    if not text:
        return None
    level = int(text.lstrip("-").removeprefix("O"))
    if not 1 <= level <= 3:
        raise ValueError("expected -O1, -O2 or -O3")
    return level


VARIABLES: dict[str, Variable] = {
    "TORCH_NEURONX_NEFF_CACHE_DIR": Variable(
        "/tmp/neff_cache", _directory, "Directory of the persistent cache of compiled programs (NEFFs)."
    ),
    "TORCH_NEURONX_NEFF_DISABLE_CACHE": Variable(
        "0", _flag, "1: neither read nor write the persistent cache; a process still compiles each program once."
    ),
    "TORCH_NEURONX_NEFF_CACHE_LOCK_TIMEOUT": Variable(
        "1200", float, "Seconds to wait for another process that compiles the same program; then compile it here too."
    ),
    "TORCH_NEURONX_DEBUG_DIR": Variable(
        "/tmp/neuron_backend", str, "Where programs are saved: those that fail to compile always, others on request."
    ),
    "TORCH_NEURONX_PRESERVE_COMPILATION_ARTIFACTS": Variable(
        "0",
        _flag,
        "1: save every program that is compiled, and every graph, with FX graph, StableHLO, NEFF and a description, "
        "under the model's name and the rank.",
    ),
    "TORCH_NEURONX_FALLBACK": Variable(
        "warn",
        _fallback,
        "What an operator without a lowering does: run on the CPU with one warning, raise (error), or silent.",
    ),
    "TORCH_NEURONX_FALLBACK_ONLY_FOR_UNIMPLEMENTED_OPS": Variable(
        "1",
        _flag,
        "1: an operator whose lowering or compile fails raises; 0: it falls back to the CPU like an unknown one.",
    ),
    "TORCH_NEURONX_DISABLE_FALLBACK_EXECUTION": Variable(
        "1", _flag, "1: a compiled graph that fails to compile raises; 0: it runs operator by operator, with a warning."
    ),
    "TORCH_NEURONX_RETAIN_DEVICE_MODE": Variable(
        "0", _flag, "1: results that a compiled graph places on the CPU stay on the device."
    ),
    "TORCH_NEURONX_DYNAMO_DISABLE_CPU_AUTOCOPY": Variable(
        "0", _flag, "1: a compiled graph refuses inputs on the CPU instead of copying them at every call."
    ),
    "TORCH_NEURONX_LOG_LEVEL": Variable("1", _log_level, "0 errors, 1 warnings, 2 information, 3 debug."),
    "TORCH_NEURONX_METRICS_ENABLED": Variable(
        "0", _flag, "1: record durations (torch_neuronx.metrics) and write the metric tables; counters always count."
    ),
    "TORCH_NEURONX_ENABLED_METRIC_TABLES": Variable(
        "",
        _metric_tables,
        "Tables to write as CSV, separated by commas: graph_stats has a row for each compiled graph. By default none, "
        "or all with TORCH_NEURONX_METRICS_ENABLED=1.",
    ),
    "TORCH_NEURONX_METRICS_DIR": Variable(
        "/tmp", str, "Directory of the tables: `metric_table_<name>_rank<rank>.csv`. Rows are appended."
    ),
    "RANK": Variable("0", int, "Set by torchrun: names this process's metric tables and saved programs."),
    "GROUP_RANK": Variable(
        "0",
        int,
        "Set by torchrun, another for each of its agents: ranks under different agents are on different hosts.",
        "extension",
    ),
    "GLOO_SOCKET_IFNAME": Variable(
        "",
        str,
        "Network interfaces on which ranks of several hosts meet, separated by commas; by default the one that leads "
        "to the host of the store.",
    ),
    "NEURON_CC_FLAGS": Variable("", str, "Further arguments for neuronx-cc; handed through as they are."),
    "NEURON_COMPILER_OPT_LEVEL": Variable(
        "", _optimize_level, "-O1, -O2 or -O3; by default -O1 for single operators and -O2 for graphs."
    ),
    "NEURON_PLATFORM_TARGET_OVERRIDE": Variable("", str, "trn2 or trn3 instead of what the runtime detects."),
    "NEURON_LOGICAL_NC_CONFIG": Variable("2", int, "Physical cores per logical core: 1 or 2."),
    "NEURON_LAUNCH_BLOCKING": Variable(
        "0", _flag, "1: wait after every launch, so that an error names its line.", "extension"
    ),
    "NEURON_RT_VISIBLE_CORES": Variable(
        "", str, "Cores this process may use, increasing and without gaps: 0, 0-3, 4,5,6. All by default.", "extension"
    ),
    "NEURON_RT_NUM_CORES": Variable("", str, "How many cores this process may use; VISIBLE_CORES wins.", "extension"),
    "TORCH_NEURONX_RUNTIME": Variable(
        "auto",
        str,
        "auto: libnrt.so.1 if this machine has Neuron devices, else the software NeuronCore; nrt; software.",
        "extension",
    ),
    "TORCH_NEURONX_PJRT_PLUGIN": Variable(
        "",
        str,
        "Path of the XLA CPU PJRT plugin under the software NeuronCore; by default an installed package.",
        "extension",
    ),
    "TORCH_NEURONX_SHARED_MEMORY": Variable(
        "1",
        _flag,
        "0: collectives between ranks of one host go over the network, as between hosts. The same on all ranks.",
    ),
    "TORCH_NEURONX_SOFTWARE_CORES": Variable(
        "8", int, "Number of cores of the software machine; by default 8, or as many as a launcher starts.", "extension"
    ),
}


def get(name: str) -> Any:
    """The value of variable `name`, converted to its type; an empty one counts as not set.

    Raises ValueError, naming the variable, when it is set to nonsense.
    """
    variable = VARIABLES[name]
    text = os.environ.get(name) or variable.default
    try:
        return variable.convert(text)
    except ValueError as error:
        raise ValueError(f"environment variable {name} is {text!r}: {error}") from None


def rank() -> int:
    """This process's rank: of the default process group, else as torchrun says."""
    import torch

    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank()
    return get("RANK")


def table() -> str:
    """The variables as a Markdown table."""
    rows = ["| variable | default | meaning |", "| --- | --- | --- |"]
    for name, variable in VARIABLES.items():
        rows.append(f"| `{name}` | {variable.default or 'unset'} | {variable.meaning} |")
    return "\n".join(rows) + "\n"
