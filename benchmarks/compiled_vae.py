# SPDX-License-Identifier: Apache-2.0
"""The decoder of AutoencoderKLFlux2 at 256 x 256 pixels, compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .peers import Build, main


def build(case: str) -> Build:
    def workload(device: str, dtype: torch.dtype, compile: Callable[..., Any]) -> Callable[[], Any]:
        from diffusers import AutoencoderKLFlux2

        torch.manual_seed(0)
        model = AutoencoderKLFlux2(block_out_channels=(64, 128, 256, 256)).to(dtype).to(device).eval()
        decoder = compile(model.decoder, fullgraph=True)
        latents = torch.randn(1, model.config.latent_channels, 32, 32).to(dtype).to(device)
        latents = model.post_quant_conv(latents).detach()

        @torch.no_grad()
        def call() -> torch.Tensor:
            return decoder(latents)

        return call

    return workload


if __name__ == "__main__":
    main("benchmarks.compiled_vae", build, ["decode"])
