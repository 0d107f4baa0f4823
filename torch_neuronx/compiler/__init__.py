# SPDX-License-Identifier: Apache-2.0
"""Compiles programs, and keeps what was compiled. Knows programs, not operators.

`submit` and `compile_program` turn a program into a NEFF. `program_index` remembers which NEFF an
operator key or a graph needs, and `load` gets it: together they spare a warm process the lowering.
"""

from __future__ import annotations

import functools

from .compile import CompiledNeff, adopt, compile_program, load, neff_cache, submit
from .errors import CompilationError
from .index import Index
from .target import Target, current
from .version import index_version

__all__ = [
    "CompilationError",
    "CompiledNeff",
    "Index",
    "Target",
    "adopt",
    "compile_program",
    "current",
    "load",
    "neff_cache",
    "program_index",
    "submit",
]


@functools.cache
def program_index() -> Index:
    """The index of this version of the package, in the cache directory."""
    cache = neff_cache()
    return Index(cache, index_version(current(), Index(cache, "package sources")))
