# SPDX-License-Identifier: Apache-2.0
"""What a compiled graph raises."""

from __future__ import annotations

from ..compiler import CompilationError


class NEFFCompilationError(CompilationError):
    """A graph did not compile. The message names the operator, its line and the saved program."""


class NEFFExecutionError(RuntimeError):
    """A compiled graph failed on the device."""
