# SPDX-License-Identifier: Apache-2.0
"""Process groups as programs name them."""

from __future__ import annotations

from typing import Any, NamedTuple

from .. import _C


class Group(NamedTuple):
    """ordinal: the place among the groups of this process. All ranks that create their groups in the same way (device
    meshes do) have the same ordinal where c10d's names differ, so their graphs and programs are the same.
    """

    ordinal: int
    size: int


def group_of(name: Any) -> Group:
    """name: c10d's group name, or the group. Raises RuntimeError when the backend `neuron` has no such group."""
    ordinal, size, _ = _C.describe_process_group(name if isinstance(name, str) else name.group_name)
    return Group(ordinal, size)
