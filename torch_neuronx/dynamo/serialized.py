# SPDX-License-Identifier: Apache-2.0
"""Compiled graphs in PyTorch's own files: AOTAutograd's cache, Dynamo's, and functions compiled ahead of time.

    {"role": …, "origin": …, "plan": how to launch it, "artifact": key of what follows, or null}
    the program as a cache artifact

Between processes of one machine the program lies in the NEFF cache, so what waits for the compiler is written
without it.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch._functorch.config
from torch._dynamo.aot_compile_types import SerializableCallable
from torch._dynamo.precompile_context import BackendCacheArtifact, PrecompileContext
from torch._functorch._aot_autograd.autograd_cache import BypassAOTAutogradCache, FXGraphCacheMiss
from torch._inductor.runtime.cache_dir_utils import cache_dir

from ..cache_artifacts import NeuronGraphArtifact
from ..compiler import program_index
from ..compiler.directory import UntrustedError, check_directory
from ..log import OncePer, logger
from .compile import CompiledGraph
from .origin import Origin
from .plan import from_record

_log = logger(__name__)
_untrusted = OncePer()


class SerializedGraphError(FXGraphCacheMiss, RuntimeError):
    """A graph's program is neither in the file nor in the NEFF cache, or it is of another version.

    AOTAutograd and Dynamo compile anew, then.
    """


def dump(graph: CompiledGraph, *, complete: bool = False) -> bytes:
    """complete: with its program, for which it waits; else with the program if there is one by now.

    Raises BypassAOTAutogradCache for a graph that cannot be launched without being traced, and CompilationError.
    """
    plan = graph.plan_record()
    if plan is None:
        raise BypassAOTAutogradCache(f"{graph.name} holds tensors or a collective")
    artifact = graph.artifact() if complete or graph.is_compiled else None
    origin = graph.origin
    header = {
        "role": graph.role,
        "origin": [origin.function, origin.line, [[name, ""] for name in graph.input_names]],
        "plan": plan,
        "artifact": artifact and artifact.key,
    }
    return json.dumps(header).encode() + b"\n" + (artifact.content if artifact else b"")


def load(data: bytes) -> CompiledGraph:
    """The graph of `dump`. Raises SerializedGraphError."""
    graph = restore(data)
    check(graph)
    return graph


def check(graph: CompiledGraph) -> None:
    """Raises SerializedGraphError for a graph without a program."""
    if not graph.is_known:
        raise SerializedGraphError(
            f"{graph.name}: its program is not in the NEFF cache, or was made by another version of torch_neuronx, "
            "PyTorch or the compiler, or on another processor; compile it again"
        )


def restore(data: bytes) -> CompiledGraph:
    """The graph of `dump`, which may turn out to have no program."""
    header, _, content = data.partition(b"\n")
    described = json.loads(header)
    if described["artifact"] is not None:
        NeuronGraphArtifact(described["artifact"], content).populate_cache()
    function, line, inputs = described["origin"]
    origin = Origin(function, line, tuple((name, text) for name, text in inputs))
    return CompiledGraph(described["role"], origin, None, plan=from_record(described["plan"]))


class InferenceFunction(SerializableCallable):
    """A graph that was traced without AOTAutograd, as a function of its inputs.

    attributes: tensors that it takes behind them. With any, it cannot be taken to another process.
    """

    def __init__(self, graph: CompiledGraph, attributes: Sequence[torch.Tensor] = ()):
        self.graph = graph
        self.attributes = attributes

    def __call__(self, *arguments: Any) -> Any:
        return self.graph([*arguments, *self.attributes])

    @classmethod
    def serialize_compile_artifacts(cls, fn: InferenceFunction) -> bytes:
        if fn.attributes:
            raise BypassAOTAutogradCache(f"{fn.graph.name} holds tensors")
        return dump(fn.graph, complete=True)

    @classmethod
    def deserialize_compile_artifacts(cls, data: bytes) -> InferenceFunction:
        return cls(load(data))


class InferenceArtifact(BackendCacheArtifact[InferenceFunction]):
    """An InferenceFunction in Dynamo's cache (`torch._dynamo.config.caching_precompile`). content: as long as the
    process that made it lives, the function."""

    def after_deserialization(self) -> InferenceFunction:
        return InferenceFunction.deserialize_compile_artifacts(self.content)

    def __deepcopy__(self, memo: dict[int, Any]) -> InferenceArtifact:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        content = self.content
        if isinstance(content, InferenceFunction):
            content = InferenceFunction.serialize_compile_artifacts(content)
        return type(self), (self.key, content)


def record_for_dynamo(gm: torch.fx.GraphModule, function: InferenceFunction) -> None:
    """Lets Dynamo keep `function` with the guards and the bytecode that call it, if it was asked to.

    gm: the graph as Dynamo hands it over.
    """
    identifier = getattr(gm, "_backend_id", None)
    if identifier is not None and not function.attributes and function.graph.plan_record() is not None:
        PrecompileContext.record_artifact(InferenceArtifact(identifier, function))


@contextlib.contextmanager
def autograd_cache(gm: torch.fx.GraphModule) -> Iterator[bool]:
    """Lets AOTAutograd keep what becomes of Dynamo's graph on disk. Yields whether it may."""
    if not _is_cacheable(gm) or not _is_trusted():
        yield False
        return
    # An attribute of the graph is part of its key.
    gm.torch_neuronx_version = program_index().version  # type: ignore[assignment]
    # The backward graph is compiled beside the forward one, not when it is first called: an entry has both.
    with torch._functorch.config.patch(bundled_autograd_cache=True, force_non_lazy_backward_lowering=True):
        yield True


def _is_trusted() -> bool:
    """Whether only this user can have written what AOTAutograd would load, which is code."""
    directory = cache_dir()
    try:
        for path in (directory, os.path.join(directory, "aotautograd")):
            with contextlib.suppress(FileNotFoundError):
                check_directory(path)
    except (UntrustedError, NotADirectoryError) as error:
        if _untrusted.first(directory):
            _log.warning("AOTAutograd's cache is not used: %s. Training graphs are traced in every process", error)
        return False
    return True


def _is_cacheable(gm: torch.fx.GraphModule) -> bool:
    """Whether AOTAutograd's key, Dynamo's graph, says everything: neither the values of tensors that the graph holds,
    nor what operators of a library do."""
    if next(gm.parameters(), None) is not None or next(gm.buffers(), None) is not None:
        return False
    graphs = [module.graph for module in gm.modules() if isinstance(module, torch.fx.GraphModule)]
    return all(_is_of_pytorch(node.target) for graph in graphs for node in graph.nodes)


def _is_of_pytorch(target: Any) -> bool:
    if isinstance(target, torch._ops.OpOverload):
        return target.namespace in ("aten", "prims")
    if isinstance(target, torch._ops.OpOverloadPacket):
        return target._qualified_op_name.startswith(("aten::", "prims::"))
    return True
