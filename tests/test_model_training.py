# SPDX-License-Identifier: Apache-2.0
"""One training step of each kind of model: loss and gradients follow the CPU, nothing falls back."""

import copy

import pytest
import torch
from torch.testing import assert_close

import torch_neuronx
from tests.tiny_models import autoencoder, bert, flux2, gpt2, move_to, qwen3, sdxl_unet


@pytest.mark.parametrize("build", [flux2, qwen3, gpt2, bert, sdxl_unet, autoencoder])
def test_training_step(build):
    torch.manual_seed(0)
    model, inputs, loss_of = build()
    model.eval()  # dropout draws from another generator than the CPU's
    losses, gradients = [], []
    for device in ("cpu", "neuron"):
        move = move_to(device)
        replica = copy.deepcopy(model).to(device)
        torch_neuronx.clear_op_tracking()
        optimizer = torch.optim.AdamW(replica.parameters(), lr=1e-3)
        loss = loss_of(replica(**move(inputs)), move)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach().cpu())
        gradients.append({n: p.grad.cpu() for n, p in replica.named_parameters() if p.grad is not None})
    assert torch_neuronx.get_fallback_ops() == []
    assert_close(losses[1], losses[0], rtol=1e-4, atol=1e-5)
    assert gradients[0].keys() == gradients[1].keys()
    scale = max(g.abs().max() for g in gradients[0].values())
    for name, expected in gradients[0].items():
        assert_close(
            gradients[1][name], expected, rtol=2e-3, atol=1e-5 * float(scale), msg=lambda m, n=name: f"{n}: {m}"
        )
