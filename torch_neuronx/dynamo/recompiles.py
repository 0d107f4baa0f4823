# SPDX-License-Identifier: Apache-2.0
"""Why Dynamo compiles a function again: said at every recompile (level 2), and as a warning when it happens often."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch._guards import CompileContext

from ..log import logger
from .static_shapes import input_name

_log = logger(__name__)

# Compiles of one frame after which the input that varies is named in a warning. Dynamo itself gives a frame
# up after `torch._dynamo.config.recompile_limit` (8).
WARN_AFTER = 8

# frame -> for every graph it gave, the inputs by name
_seen: dict[int, list[dict[str, str]]] = {}


def note(gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> None:
    """Remembers a compile of the current frame; says what differs from the ones before."""
    compile_id = CompileContext.current_compile_id()
    if compile_id is None or compile_id.frame_id is None:
        return
    nodes = gm.graph.find_nodes(op="placeholder")
    described = {input_name(node): _describe(value) for node, value in zip(nodes, inputs, strict=False)}
    history = _seen.setdefault(compile_id.frame_id, [])
    if compile_id.frame_compile_id == 0:
        history.clear()
    if history:
        _log.info("%s compiles again: %s", compile_id, _difference(history[-1], described))
    history.append(described)
    if len(history) == WARN_AFTER:
        _log.warning(
            "one function has been compiled %d times (graph %s), each for other inputs: %s. Every new shape is a new "
            "program; pad to a few fixed shapes, or pass what varies as a tensor",
            len(history),
            compile_id,
            _variation(history),
        )


def _describe(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        dtype = str(value.dtype).removeprefix("torch.")
        grad = ", requires_grad" if value.requires_grad else ""
        return f"{dtype}{list(value.shape)} with strides {list(value.stride())}{grad}"
    return repr(value)


def _difference(before: dict[str, str], now: dict[str, str]) -> str:
    changed = [f"{name} is {now[name]}, was {before[name]}" for name in now if before.get(name, now[name]) != now[name]]
    new = [f"{name} is new" for name in now if name not in before]
    return "; ".join(changed + new) or "no input differs (a Python value or a module does; TORCH_LOGS=recompiles tells)"


def _variation(history: Sequence[dict[str, str]]) -> str:
    """The inputs that took several values, with these values."""
    parts = []
    for name in history[-1]:
        values = list(dict.fromkeys(inputs[name] for inputs in history if name in inputs))
        if len(values) > 1:
            parts.append(f"{name} was {', '.join(values)}")
    return "; ".join(parts) or "no tensor differs (a Python value or a module does; TORCH_LOGS=recompiles tells)"
