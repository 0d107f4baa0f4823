# SPDX-License-Identifier: Apache-2.0
"""Models of Diffusers and Transformers, compiled: blocks against eager, training and generation against the CPU."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.testing import assert_close

import torch_neuronx
from tests.tiny_models import autoencoder, bert, flux2, gpt2, gpt2_model, move_to, qwen3, qwen3_model, sdxl_unet
from torch_neuronx.neuron_dynamo_backend import get_dynamo_metrics

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


def graphs() -> int:
    """Compiled graphs that this process has waited for so far."""
    return get_dynamo_metrics()["graphs"]


# -- blocks: compiled equals eager -------------------------------------------------------------


def qwen3_layer() -> tuple[torch.nn.Module, dict[str, Any]]:
    from transformers.models.qwen3.modeling_qwen3 import Qwen3DecoderLayer

    config = qwen3()[0].config
    angles = torch.arange(12)[:, None] * torch.tensor([1.0, 0.3, 0.1, 0.01]).repeat(2)
    inputs = {
        "hidden_states": torch.randn(2, 12, 32),
        "position_embeddings": (angles.cos()[None], angles.sin()[None]),
        "attention_mask": None,
    }
    return Qwen3DecoderLayer(config, layer_idx=0), inputs


def resnet_block() -> tuple[torch.nn.Module, dict[str, Any]]:
    from diffusers.models.resnet import ResnetBlock2D

    block = ResnetBlock2D(in_channels=16, out_channels=32, temb_channels=24, groups=8)
    return block, {"input_tensor": torch.randn(2, 16, 8, 8), "temb": torch.randn(2, 24)}


def cast(value: Any, dtype: torch.dtype, device: str) -> Any:
    if isinstance(value, tuple):
        return tuple(cast(v, dtype, device) for v in value)
    return value.to(device, dtype) if isinstance(value, torch.Tensor) else value


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["f32", "bf16"])
@pytest.mark.parametrize("build", [qwen3_layer, resnet_block])
def test_a_compiled_block_equals_eager(build: Callable, dtype: torch.dtype) -> None:
    """Results and gradients within 1e-5 (f32) and two units in the last place (bf16), of the result's scale."""
    block, inputs = build()
    block = block.eval().to("neuron", dtype)
    inputs = {name: cast(value, dtype, "neuron") for name, value in inputs.items()}
    first = next(iter(inputs.values())).requires_grad_()
    tensors = {"the input": first, **dict(block.named_parameters())}

    def run() -> dict[str, torch.Tensor]:
        output = block(**inputs)
        output = output[0] if isinstance(output, tuple) else output
        slope = torch.linspace(-1, 1, output.numel(), device="neuron", dtype=dtype).reshape(output.shape)
        gradients = torch.autograd.grad(output, list(tensors.values()), slope)
        return {"the result": output.detach(), **dict(zip(tensors, gradients, strict=True))}

    eager = run()
    block.compile(backend="neuron", fullgraph=True, dynamic=False)
    for name, value in run().items():
        scale = eager[name].abs().max().item()
        tolerance = 1e-5 * scale if dtype == torch.float32 else 2 * unit_in_the_last_place(scale)
        assert_close(value, eager[name], rtol=0, atol=tolerance, msg=lambda m, name=name: f"{name}: {m}")


def unit_in_the_last_place(value: float) -> float:
    """Of bfloat16, which has eight significant bits."""
    return 2.0 ** (math.frexp(value)[1] - 8)


# -- training ----------------------------------------------------------------------------------


@pytest.mark.parametrize("build", [gpt2, bert, sdxl_unet, autoencoder])
def test_training_follows_the_cpu(build: Callable) -> None:
    """Losses of three steps and gradients of the first. Once, the optimizer is a graph too."""
    model, inputs, loss_of = build()
    model.eval()  # dropout draws from another generator than the CPU's
    replica = copy.deepcopy(model).to("neuron")
    replica.compile(backend="neuron", fullgraph=True, dynamic=False)
    losses: list[list[float]] = []
    gradients: list[dict[str, torch.Tensor]] = []
    torch_neuronx.clear_op_tracking()
    for trained, device in ((model, "cpu"), (replica, "neuron")):
        move = move_to(device)
        arguments = move(inputs)
        optimizer: torch.optim.Optimizer = torch.optim.SGD(trained.parameters(), lr=1e-2)
        step = optimizer.step
        if build is gpt2:
            optimizer = torch.optim.AdamW(trained.parameters(), lr=1e-3)
            step = optimizer.step if device == "cpu" else torch.compile(optimizer.step, backend="neuron", dynamic=False)
        losses.append([])
        for iteration in range(3):
            loss = loss_of(trained(**arguments), move)
            loss.backward()
            if iteration == 0:
                gradients.append({n: p.grad.cpu() for n, p in trained.named_parameters() if p.grad is not None})
            step()
            optimizer.zero_grad()
            losses[-1].append(loss.item())
    assert set(torch_neuronx.get_fallback_ops()) <= {"aten::_local_scalar_dense", "aten::item"}
    assert losses[0][0] != losses[0][2]
    assert_close(losses[1], losses[0], rtol=1e-4, atol=1e-5)
    assert gradients[0].keys() == gradients[1].keys()
    scale = max(float(gradient.abs().max()) for gradient in gradients[0].values())
    for name, expected in gradients[0].items():
        assert_close(gradients[1][name], expected, rtol=1e-3, atol=1e-5 * scale, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize(
    "options, tolerance",
    [
        ({}, 1e-4),
        ({"gradient_accumulation_steps": 2, "gradient_checkpointing": True}, 1e-4),
        ({"bf16": True}, 2e-2),
    ],
    ids=["plain", "accumulation-and-checkpointing", "bf16"],
)
def test_trainer(options: dict, tolerance: float, tmp_path) -> None:
    """Transformers' Trainer with `torch_compile=True` chooses this device and this backend by itself."""
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

    dropout = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    config = GPT2Config(
        vocab_size=99, n_embd=32, n_layer=2, n_head=4, n_positions=32, bos_token_id=1, eos_token_id=2, **dropout
    )
    model = GPT2LMHeadModel(config)
    model.loss_type = "ForCausalLM"
    data = [{"input_ids": tokens, "labels": tokens} for tokens in torch.randint(0, 99, (16, 12))]
    logs = []
    for device, where in (("cpu", {"use_cpu": True}), ("neuron", {"torch_compile": True})):
        arguments = TrainingArguments(
            output_dir=str(tmp_path),
            per_device_train_batch_size=2,
            max_steps=3,
            logging_steps=1,
            learning_rate=1e-2,
            report_to=[],
            save_strategy="no",
            disable_tqdm=True,
            seed=0,
            **options,
            **where,
        )
        trainer = Trainer(model=copy.deepcopy(model), args=arguments, train_dataset=data)
        before = graphs()
        trainer.train()
        assert trainer.model.device.type == device
        assert (graphs() > before) == (device == "neuron")
        history = [entry for entry in trainer.state.log_history if "loss" in entry]
        logs.append([(entry["loss"], float(entry["grad_norm"])) for entry in history])
    assert len(logs[0]) == 3
    assert_close(torch.tensor(logs[1]), torch.tensor(logs[0]), rtol=tolerance, atol=tolerance)


# -- generation --------------------------------------------------------------------------------


def language_model(kind: str) -> torch.nn.Module:
    """One whose greedy choices are far from ties."""
    options: dict[str, Any] = {
        "initializer_range": 0.3,
        "bos_token_id": 1,
        "eos_token_id": None,
        "pad_token_id": 0,
    }
    if kind == "gpt2":
        return gpt2_model(n_positions=4096, **options).eval()
    return qwen3_model(max_position_embeddings=4096, **options).eval()


def prompt() -> dict[str, torch.Tensor]:
    """Two prompts, one of them padded on the left."""
    mask = torch.ones(2, 7, dtype=torch.int64)
    mask[0, :2] = 0
    return {"input_ids": torch.randint(3, 99, (2, 7)), "attention_mask": mask}


def test_generate_with_a_static_cache() -> None:
    """Transformers compiles the step for one token by itself: one graph for all tokens and all calls."""
    model, inputs = language_model("gpt2"), prompt()
    options = {"max_new_tokens": 8, "do_sample": False}
    expected = model.generate(**inputs, **options)
    model.to("neuron")
    before = graphs()
    for _ in range(2):
        tokens = model.generate(**move_to("neuron")(inputs), cache_implementation="static", **options)
        assert tokens.device.type == "neuron"
        assert tokens.cpu().equal(expected)
        assert graphs() - before == 1


def test_a_static_cache_is_updated_in_place() -> None:
    """While tokens are generated, the peak of device memory grows by less than the keys of one layer."""
    from transformers import StoppingCriteriaList

    model, inputs = language_model("qwen3"), prompt()
    new_tokens, positions = 6, 2048
    expected = model.generate(**inputs, max_new_tokens=new_tokens, do_sample=False)
    keys_of_a_layer = 2 * 2 * positions * 8 * 4  # batch, heads, positions, width, bytes
    levels = []

    def stop(tokens: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        torch.neuron.synchronize()
        levels.append((torch.neuron.memory_allocated(), torch.neuron.max_memory_allocated()))
        torch.neuron.reset_peak_memory_stats()
        return torch.full((tokens.shape[0],), len(levels) == new_tokens, device=tokens.device)

    before = graphs()
    tokens = model.to("neuron").generate(
        **move_to("neuron")(inputs),
        cache_implementation="static",
        max_length=positions,
        do_sample=False,
        stopping_criteria=StoppingCriteriaList([stop]),
    )
    assert tokens.cpu().equal(expected)
    assert graphs() - before == 1
    growth = [peak - levels[i][0] for i, (_, peak) in enumerate(levels[1:])]
    assert max(growth) < keys_of_a_layer / 2, levels


def test_generate_with_a_growing_cache() -> None:
    """Every length is another program, so nothing is compiled as a whole."""
    model, inputs = language_model("qwen3"), prompt()
    options = {"max_new_tokens": 3, "do_sample": False}
    expected = model.generate(**inputs, **options)
    before = graphs()
    tokens = model.to("neuron").generate(**move_to("neuron")(inputs), **options)
    assert tokens.cpu().equal(expected)
    assert graphs() == before


# -- Diffusers: repeated blocks, attention backends, offloading --------------------------------


def flux2_of_several_blocks() -> tuple[torch.nn.Module, dict[str, Any]]:
    from diffusers import Flux2Transformer2DModel

    model, inputs, _ = flux2()
    config = {**model.config, "num_layers": 2, "num_single_layers": 3}
    return Flux2Transformer2DModel.from_config(config).eval(), inputs


@torch.no_grad()
def test_repeated_blocks_compile_once() -> None:
    """Two double blocks are one program, three single blocks another."""
    model, inputs = flux2_of_several_blocks()
    (expected,) = model(**inputs)
    model.to("neuron").compile_repeated_blocks(backend="neuron", fullgraph=True, dynamic=False)
    before = graphs()
    (actual,) = model(**move_to("neuron")(inputs))
    assert graphs() - before == 2
    assert_close(actual.cpu(), expected, rtol=1e-4, atol=1e-4)


@torch.no_grad()
@pytest.mark.parametrize("name", ["native", "_native_math"])
def test_attention_backends(name: str) -> None:
    model, inputs, _ = flux2()
    (expected,) = model.eval()(**inputs)
    model.to("neuron").set_attention_backend(name)
    model.compile_repeated_blocks(backend="neuron", fullgraph=True, dynamic=False)
    (actual,) = model(**move_to("neuron")(inputs))
    assert_close(actual.cpu(), expected, rtol=1e-4, atol=1e-4)


@torch.no_grad()
@pytest.mark.parametrize(
    "options",
    [
        {"offload_type": "block_level", "num_blocks_per_group": 1, "use_stream": True},
        {"offload_type": "leaf_level", "use_stream": False},
    ],
    ids=["block_level-stream", "leaf_level"],
)
def test_group_offload(options: dict) -> None:
    """Weights come to the device for their block only; the block's hooks break its graph."""
    from diffusers.hooks import apply_group_offloading

    model, inputs = flux2_of_several_blocks()
    (expected,) = model(**inputs)
    model.compile_repeated_blocks(backend="neuron", dynamic=False)
    apply_group_offloading(
        model,
        onload_device=torch.device("neuron"),
        offload_device=torch.device("cpu"),
        **options,
    )
    before = graphs()
    for _ in range(2):
        (actual,) = model(**move_to("neuron")(inputs))
        assert actual.device.type == "neuron"
        assert_close(actual.cpu(), expected, rtol=1e-4, atol=1e-4)
    assert graphs() > before
    assert all(p.device.type == "cpu" for p in model.transformer_blocks[0].parameters())
