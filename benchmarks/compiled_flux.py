# SPDX-License-Identifier: Apache-2.0
"""The FLUX.2 transformer of `flux_block`, compiled, with 1024, 256 and 4096 image tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .peers import Build, main

TEXT_TOKENS = 128


def build(case: str) -> Build:
    image_tokens = int(case)

    def workload(device: str, dtype: torch.dtype, compile: Callable[..., Any]) -> Callable[[], Any]:
        from diffusers import Flux2Transformer2DModel

        torch.manual_seed(0)
        torch.set_default_dtype(dtype)
        model = Flux2Transformer2DModel(
            in_channels=128,
            num_layers=2,
            num_single_layers=4,
            attention_head_dim=128,
            num_attention_heads=8,
            joint_attention_dim=1024,
            guidance_embeds=False,
        )
        torch.set_default_dtype(torch.float32)
        model = compile(model.to(device).eval(), fullgraph=True)
        side, one = int(image_tokens**0.5), torch.arange(1)
        inputs = {
            "hidden_states": torch.randn(1, image_tokens, 128).to(dtype),
            "encoder_hidden_states": torch.randn(1, TEXT_TOKENS, 1024).to(dtype),
            "timestep": torch.tensor([0.5], dtype=dtype),
            "img_ids": torch.cartesian_prod(one, torch.arange(side), torch.arange(side), one),
            "txt_ids": torch.cartesian_prod(one, one, one, torch.arange(TEXT_TOKENS)),
        }
        inputs = {name: value.to(device) for name, value in inputs.items()}

        @torch.no_grad()
        def call() -> torch.Tensor:
            return model(**inputs, return_dict=False)[0]

        return call

    return workload


if __name__ == "__main__":
    main("benchmarks.compiled_flux", build, ["1024", "256", "4096"])
