# SPDX-License-Identifier: Apache-2.0
"""Where a training graph is cut into forward and backward."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch._functorch.partitioners import min_cut_rematerialization_partition, must_recompute
from torch.utils.checkpoint import CheckpointPolicy

from .cross_entropy import fuse_cross_entropy
from .tied_embedding import add_embedding_gradients


def partition(
    joint: torch.fx.GraphModule, joint_inputs: Sequence[Any], **arguments: Any
) -> tuple[torch.fx.GraphModule, torch.fx.GraphModule]:
    """PyTorch's min-cut partitioner. Random results are saved, never drawn again: a checkpointed region gives
    the backward pass the numbers that the forward pass has seen."""
    fuse_cross_entropy(joint.graph)
    add_embedding_gradients(joint.graph)
    for node in joint.graph.nodes:
        overload = node.target
        if not isinstance(overload, torch._ops.OpOverload) or not must_recompute(node):
            continue
        if torch.Tag.nondeterministic_seeded in overload.tags:
            del node.meta["recompute"]
            for result in [user for user in node.users if user.target is operator.getitem] or [node]:
                result.meta["recompute"] = CheckpointPolicy.MUST_SAVE
    return min_cut_rematerialization_partition(joint, joint_inputs, **arguments)
