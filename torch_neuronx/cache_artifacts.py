# SPDX-License-Identifier: Apache-2.0
"""Compiled graphs in `torch.compiler.save_cache_artifacts` and `load_cache_artifacts`.

Imported with the package, because PyTorch refuses a file with artifacts of a kind that it does not know yet.
A NEFF is code: load artifacts only from where you would load programs.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

from torch.compiler._cache import CacheArtifact, CacheArtifactFactory, CacheArtifactManager

from .log import logger

if TYPE_CHECKING:
    from .compiler import CompiledNeff

_log = logger(__name__)


@CacheArtifactFactory.register
class NeuronGraphArtifact(CacheArtifact):
    """A record of the index and its NEFF. key: the fingerprint of the graph, in hexadecimal.

    content: a line of JSON (version, record, manifest, checksum of the NEFF, plan), then the NEFF.
    """

    @staticmethod
    def type() -> str:
        return "neuron_graph"

    def populate_cache(self) -> None:
        """Adds it to this process and to the cache on disk, unless it is of another version, or damaged."""
        from .compiler import CompiledNeff, adopt, program_index

        header, _, data = self.content.partition(b"\n")
        try:
            described = json.loads(header)
            version, record, checksum = described["version"], described["record"], described["sha256"]
            fingerprint = bytes.fromhex(self.key)
            plan = described.get("plan")
            plan_key = bytes.fromhex(plan[0]) if plan else b""
        except (ValueError, KeyError, TypeError) as error:
            _log.warning("a compiled graph among the cache artifacts is damaged (%r) and ignored", error)
            return
        if version != _version():
            _log.warning(
                "a compiled graph among the cache artifacts (%s) is of another version of torch_neuronx, PyTorch or "
                "compiler, or of another processor, and ignored",
                record.get("description", "nothing to compute"),
            )
            return
        if hashlib.sha256(data).hexdigest() != checksum:
            _log.warning("%s among the cache artifacts is damaged (checksum) and ignored", record.get("description"))
            return
        if record["neff"] is not None:
            adopt(CompiledNeff(record["neff"], data), described["manifest"])
        program_index().add(fingerprint, record)
        if plan:
            program_index().add(plan_key, plan[1])


def record(artifact: NeuronGraphArtifact) -> None:
    """Lets `save_cache_artifacts` carry a graph."""
    CacheArtifactManager.record_artifact(artifact.type(), artifact.key, artifact.content)


def artifact_of(
    fingerprint: bytes,
    record: dict[str, Any],
    neff: CompiledNeff | None,
    plan: tuple[bytes, dict[str, Any]] | None,
) -> NeuronGraphArtifact:
    """A graph to be taken elsewhere. neff: None for a graph that computes nothing. plan: what spares the trace of
    the graph, and its key."""
    from .compiler import neff_cache
    from .compiler.directory import UntrustedError

    manifest = None
    if neff is not None:
        try:
            manifest = neff_cache().manifest(neff.key)
        except (OSError, ValueError, UntrustedError):
            pass  # the NEFF is at hand all the same; `load` has warned
        manifest = manifest or {"operator": record["description"], "parts": []}
    data = b"" if neff is None else neff.data
    header = {
        "version": _version(),
        "record": record,
        "manifest": manifest,
        "sha256": hashlib.sha256(data).hexdigest(),
        "plan": plan and [plan[0].hex(), plan[1]],
    }
    return NeuronGraphArtifact(fingerprint.hex(), json.dumps(header, sort_keys=True).encode() + b"\n" + data)


def _version() -> str:
    from .compiler import program_index

    return program_index().version
