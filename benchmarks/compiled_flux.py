# SPDX-License-Identifier: Apache-2.0
"""The FLUX.2 transformer of `flux_block`, compiled, with 1024, 256 and 4096 image tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .flux_model import make_inputs, make_model
from .peers import Build, main


def build(case: str) -> Build:
    image_tokens = int(case)

    def workload(device: str, dtype: torch.dtype, compile: Callable[..., Any]) -> Callable[[], Any]:
        model = compile(make_model(dtype).to(device), fullgraph=True)
        inputs = make_inputs(image_tokens, dtype, device)

        @torch.no_grad()
        def call() -> torch.Tensor:
            return model(**inputs, return_dict=False)[0]

        return call

    return workload


if __name__ == "__main__":
    main("benchmarks.compiled_flux", build, ["1024", "256", "4096"])
