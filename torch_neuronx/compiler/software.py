# SPDX-License-Identifier: Apache-2.0
"""The driver of the software NeuronCore's compiler: in this process, without the GIL."""

from __future__ import annotations

import json
from typing import Any

from ..stablehlo import Program
from .errors import CompilerFailure
from .target import Target


def flags(target: Target, optimize_level: int) -> str:
    """What decides the result beside program and target."""
    return f"O{optimize_level}"


def compile(program: Program, target: Target, optimize_level: int, metadata: dict[str, Any]) -> bytes:
    """StableHLO to the bytes of a NEFF. Raises CompilerFailure.

    optimize_level: 1 compiles fast (single operators); 2 and 3 run fast (graphs).
    """
    from .. import _C

    try:
        return _C.compile(program.located_text, json.dumps(metadata), 0 if optimize_level < 2 else 1)
    except RuntimeError as error:
        raise CompilerFailure(str(error)) from error
