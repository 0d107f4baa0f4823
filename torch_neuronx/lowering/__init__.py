# SPDX-License-Identifier: Apache-2.0
"""The lowering table: one rule per functional ATen operator, one module per operator family."""

from .registry import TABLE, DataDependentShape, LoweringError, Rule, lower, lowers

__all__ = ["TABLE", "DataDependentShape", "LoweringError", "Rule", "load_rules", "lower", "lowers"]


def load_rules() -> dict:
    """Imports every family (once) and returns the table."""
    from . import families  # noqa: F401

    return TABLE
