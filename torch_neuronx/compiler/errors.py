# SPDX-License-Identifier: Apache-2.0
"""What a failed compile raises."""

from __future__ import annotations


class CompilationError(RuntimeError):
    """A program did not compile.

    reason: what the compiler said.
    program_path: where the program was saved; None when it could not be saved.
    """

    def __init__(self, message: str, reason: str = "", program_path: str | None = None):
        super().__init__(message)
        self.reason = reason or message
        self.program_path = program_path


class CompilerFailure(Exception):
    """Raised by a driver with the compiler's own words; `compile` adds what it knows of the program."""
