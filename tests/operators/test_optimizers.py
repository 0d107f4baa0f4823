# SPDX-License-Identifier: Apache-2.0
"""torch.optim on the device: per tensor, foreach and fused."""

from __future__ import annotations

import pytest
import torch
from torch import optim

import torch_neuronx

OPTIMIZERS = [
    (optim.SGD, {"lr": 0.1}),
    (optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
    (optim.SGD, {"lr": 0.1, "momentum": 0.9, "dampening": 0.1, "fused": True}),
    (optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01, "fused": True}),
    (optim.SGD, {"lr": 0.1, "maximize": True, "fused": True}),
    (optim.Adam, {"weight_decay": 0.1, "amsgrad": True, "foreach": False}),
    (optim.Adam, {"weight_decay": 0.1, "amsgrad": True, "fused": True}),
    (optim.AdamW, {}),
    (optim.AdamW, {"foreach": False}),
    (optim.AdamW, {"fused": True}),
    (optim.AdamW, {"maximize": True, "fused": True}),
    (optim.AdamW, {"lr": torch.tensor(0.01), "fused": True}),
    (optim.RMSprop, {"momentum": 0.5, "centered": True}),
    (optim.Adagrad, {}),
    (optim.Adadelta, {}),
    (optim.NAdam, {}),
    (optim.RAdam, {}),
    (optim.Adamax, {}),
]


def train(device: str, optimizer_class: type[optim.Optimizer], options: dict, dtype: torch.dtype) -> list[torch.Tensor]:
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 4)).to(device, dtype)
    optimizer = optimizer_class(model.parameters(), **options)
    x = torch.linspace(-1, 1, 40).reshape(5, 8).to(device, dtype)
    for _ in range(4):
        optimizer.zero_grad()
        (model(x) ** 2).mean().backward()
        optimizer.step()
    return [p.detach().cpu() for p in model.parameters()]


@pytest.mark.parametrize(
    "optimizer_class, options", OPTIMIZERS, ids=lambda v: getattr(v, "__name__", None) or "-".join(v)
)
def test_optimizer(optimizer_class, options):
    torch_neuronx.clear_op_tracking()
    actual = train("neuron", optimizer_class, options, torch.float32)
    assert torch_neuronx.get_fallback_ops() == []
    # Rounding differences in tiny gradients grow when they are divided by their own size.
    torch.testing.assert_close(actual, train("cpu", optimizer_class, options, torch.float32), rtol=1e-4, atol=1e-5)


def test_new_learning_rate_does_not_compile():
    parameter = torch.nn.Parameter(torch.ones(3, device="neuron"))
    optimizer = optim.AdamW([parameter], fused=True)
    parameter.grad = torch.ones(3, device="neuron")
    optimizer.step()
    parameter.cpu()
    before = torch_neuronx.metrics.get_counter_value("CompilationCache.InMemoryMisses")
    optimizer.param_groups[0]["lr"] = 0.123
    optimizer.step()
    parameter.cpu()
    assert before and torch_neuronx.metrics.get_counter_value("CompilationCache.InMemoryMisses") == before


def test_fused_adam_skips_a_step_with_infinite_gradients():
    arguments = [[torch.full((3,), float(i + 1), device="neuron")] for i in range(4)]
    before = [group[0].cpu() for group in arguments]
    torch._fused_adamw_(
        *arguments,
        [],
        [torch.ones((), device="neuron")],
        lr=0.1,
        beta1=0.9,
        beta2=0.99,
        weight_decay=0.1,
        eps=1e-8,
        amsgrad=False,
        maximize=False,
        grad_scale=torch.tensor(2.0, device="neuron"),
        found_inf=torch.tensor(1.0, device="neuron"),
    )
    torch.testing.assert_close([group[0].cpu() for group in arguments], before)
