# SPDX-License-Identifier: Apache-2.0
"""The backend `neuron` of torch.distributed."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from .. import _C, environment


def _create(options: Any, backend_options: Any) -> Any:
    """Makes the backend of one group; torch.distributed calls it on every rank of the group.

    Ranks of one host meet in shared memory, others over the network. A host is what one agent of the launcher looks
    after: torchrun starts one on each machine, and two on one machine count as two hosts."""
    _C.current_device()  # raises when there are more ranks than cores
    size = options.group_size
    name = str(options.group_id) or "default"
    global_ranks = list(options.global_ranks_in_group) or list(range(size))
    if environment.get("TORCH_NEURONX_SHARED_MEMORY"):
        group = _C.create_process_group_on_one_host(
            options.store, options.group_rank, size, options.timeout, name, global_ranks
        )
        if group is not None:
            return group
    from .network import connect  # not needed on one host

    store = dist.PrefixStore("network/", options.store)
    connections = connect(store, options.group_rank, size, options.timeout, name)
    return _C.create_process_group_over_network(
        options.group_rank, connections.files, connections.processes, options.timeout, name, global_ranks
    )


def register() -> None:
    """Makes the backend known, also as the one that tensors on neuron get by default."""
    # A list: the letters of a string would each be taken for a device.
    dist.Backend.register_backend("neuron", _create, extended_api=True, devices=["neuron"])
