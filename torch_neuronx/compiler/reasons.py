# SPDX-License-Identifier: Apache-2.0
"""Why something was compiled again: in words, from what two compiles of one function were given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def changed_arguments(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """One text for each argument that differs. before, now: from its name to what it was."""
    changed = [f"{name} is {now[name]}, was {before[name]}" for name in now if before.get(name, now[name]) != now[name]]
    return changed + [f"{name} is new" for name in now if name not in before]


def changed_operators(before: Sequence[str], now: Sequence[str]) -> list[str]:
    """One text, at most: the operators that only one of two graphs has."""
    parts = []
    if added := sorted(set(now) - set(before)):
        parts.append(f"has {', '.join(added)}")
    if gone := sorted(set(before) - set(now)):
        parts.append(f"has no {', '.join(gone)}")
    return ["the graph " + " and ".join(parts)] if parts else []
