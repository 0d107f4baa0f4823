# SPDX-License-Identifier: Apache-2.0
"""The FLUX.2 transformer of 129 million parameters that several benchmarks run, and its inputs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from diffusers import Flux2Transformer2DModel

TEXT_TOKENS = 128


CONFIG = {
    "in_channels": 128,
    "num_layers": 2,
    "num_single_layers": 4,
    "attention_head_dim": 128,
    "num_attention_heads": 8,
    "joint_attention_dim": 1024,
    "guidance_embeds": False,
}
# FLUX.2 klein of 4 billion parameters.
KLEIN_CONFIG = {
    **CONFIG,
    "num_layers": 5,
    "num_single_layers": 20,
    "num_attention_heads": 24,
    "joint_attention_dim": 7680,
}


def make_model(dtype: torch.dtype) -> Flux2Transformer2DModel:
    """On the CPU, with random weights from a fixed seed."""
    from diffusers import Flux2Transformer2DModel

    torch.manual_seed(0)
    torch.set_default_dtype(dtype)  # makes the weights in this dtype: no detour through float32
    model = Flux2Transformer2DModel(**CONFIG)
    torch.set_default_dtype(torch.float32)
    return model.eval()


def make_inputs(image_tokens: int, dtype: torch.dtype, device: str) -> dict[str, torch.Tensor]:
    """image_tokens: a square number."""
    side = int(image_tokens**0.5)
    one = torch.arange(1)
    inputs = {
        "hidden_states": torch.randn(1, image_tokens, 128).to(dtype),
        "encoder_hidden_states": torch.randn(1, TEXT_TOKENS, 1024).to(dtype),
        "timestep": torch.tensor([0.5], dtype=dtype),
        "img_ids": torch.cartesian_prod(one, torch.arange(side), torch.arange(side), one),
        "txt_ids": torch.cartesian_prod(one, one, one, torch.arange(TEXT_TOKENS)),
    }
    return {name: value.to(device) for name, value in inputs.items()}
