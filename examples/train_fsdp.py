# SPDX-License-Identifier: Apache-2.0
"""Trains a small transformer with FSDP2: every rank holds a part of each weight, gradient and optimizer state.

    torchrun --nproc_per_node=4 examples/train_fsdp.py
    torchrun --nproc_per_node=2 examples/train_fsdp.py --steps 50 --checkpoint checkpoints/fsdp

It learns to continue sequences that count upwards from a random number. A checkpoint holds the parts of all ranks; it
is saved at the end and read again, perhaps by another number of ranks, when it is there at the start.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

VOCABULARY, LENGTH, WIDTH, HEADS, LAYERS = 64, 32, 64, 4, 2


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        attended = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).flatten(-2))
        return x + self.mlp(self.norm2(x))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.position = nn.Parameter(torch.randn(LENGTH, WIDTH) * 0.02)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens) + self.position[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def batch(generator: torch.Generator, size: int) -> torch.Tensor:
    start = torch.randint(0, VOCABULARY, (size, 1), generator=generator)
    return (start + torch.arange(LENGTH + 1)) % VOCABULARY


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch", type=int, default=8, help="sequences per rank and step")
    parser.add_argument("--checkpoint", type=Path, help="a directory")
    arguments = parser.parse_args()

    dist.init_process_group(backend="neuron")
    rank = dist.get_rank()
    mesh = init_device_mesh("neuron", (dist.get_world_size(),))
    torch.manual_seed(0)  # the same weights on every rank, before they are cut up
    model = Model().to(torch.neuron.current_device())
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    if arguments.checkpoint is not None and (arguments.checkpoint / ".metadata").exists():
        weights, state = get_state_dict(model, optimizer)
        checkpoint.load({"model": weights, "optimizer": state}, checkpoint_id=arguments.checkpoint)
        set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=state)
        if rank == 0:
            print(f"continuing from {arguments.checkpoint}")

    generator = torch.Generator().manual_seed(rank)  # other data on every rank
    for step in range(arguments.steps):
        tokens = batch(generator, arguments.batch).to(torch.neuron.current_device())
        logits = model(tokens[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 10 == 0 or step == arguments.steps - 1:
            dist.all_reduce(loss.detach(), dist.ReduceOp.AVG)
            if rank == 0:
                print(f"step {step}: loss {loss.item():.3f}")
    if arguments.checkpoint is not None:
        weights, state = get_state_dict(model, optimizer)
        checkpoint.save({"model": weights, "optimizer": state}, checkpoint_id=arguments.checkpoint)
        if rank == 0:
            print(f"saved {arguments.checkpoint}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
