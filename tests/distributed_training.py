# SPDX-License-Identifier: Apache-2.0
"""A small model and its training, the same on every rank and on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn


class Mlp(nn.Module):
    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(nn.functional.gelu(self.up(x)))


def seeded(make: Callable[[], Any], seed: int = 0) -> Any:
    torch.manual_seed(seed)
    return make()


def losses(model: Callable, optimizer: torch.optim.Optimizer, inputs: list[torch.Tensor]) -> list[float]:
    """Of one step for each of `inputs`, which the model learns to return."""
    values = []
    for x in inputs:
        optimizer.zero_grad()
        loss = (model(x) - x).square().mean()
        loss.backward()
        optimizer.step()
        values.append(loss.item())
    return values
