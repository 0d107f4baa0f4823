# SPDX-License-Identifier: Apache-2.0
"""Why Dynamo compiles a function again: said at every recompile (level 2), and as a warning when it happens often."""

from __future__ import annotations

import re
from collections.abc import Sequence

from torch._guards import CompileContext

from ..compiler.reasons import changed_arguments
from ..log import logger
from .origin import Origin

_log = logger(__name__)

# Compiles of one frame after which the input that varies is named in a warning. Dynamo itself gives a frame
# up after `torch._dynamo.config.recompile_limit` (8).
WARN_AFTER = 8

_NO_INPUT = "no input differs (a Python value, a module or the mode of autograd does; TORCH_LOGS=recompiles tells)"

_OF_A_TENSOR = re.compile(r"\.(size|stride|storage_offset)\(\)(\[\d+\])?$")

# frame -> for every graph it gave, the inputs by name
_seen: dict[int, list[dict[str, str]]] = {}


def note(origin: Origin) -> None:
    """Remembers a compile of the current frame; says what differs from the one before."""
    compile_id = CompileContext.current_compile_id()
    if compile_id is None or compile_id.frame_id is None:
        return
    # The sizes of a tensor that Dynamo had left open are inputs of their own; the tensor itself tells them.
    described = {name: what for name, what in origin.inputs if not _OF_A_TENSOR.search(name)}
    history = _seen.setdefault(compile_id.frame_id, [])
    if compile_id.frame_compile_id == 0:
        history.clear()
    if history:
        reasons = changed_arguments(history[-1], described)
        _log.info(
            "%s (%s) is compiled again (graph %s): %s",
            origin.function,
            origin.line,
            compile_id,
            "; ".join(reasons) or _NO_INPUT,
        )
    history.append(described)
    if len(history) == WARN_AFTER:
        _log.warning(
            "%s (%s) has been compiled %d times (graph %s), each time for other inputs: %s. Every new shape is a new "
            "program; pad to a few fixed shapes, or pass what varies as a tensor",
            origin.function,
            origin.line,
            len(history),
            compile_id,
            _variation(history),
        )


def _variation(history: Sequence[dict[str, str]]) -> str:
    """The inputs that took several values, with these values."""
    parts = []
    for name in history[-1]:
        values = list(dict.fromkeys(inputs[name] for inputs in history if name in inputs))
        if len(values) > 1:
            parts.append(f"{name} was {', '.join(values)}")
    return "; ".join(parts) or _NO_INPUT
