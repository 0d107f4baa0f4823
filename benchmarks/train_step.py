# SPDX-License-Identifier: Apache-2.0
"""GPT-2 of 30 million parameters: forward, backward and AdamW, compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .peers import Build, main

BATCH, TOKENS = 4, 256


def build(case: str) -> Build:
    def workload(device: str, dtype: torch.dtype, compile: Callable[..., Any]) -> Callable[[], Any]:
        # The first training graph of a process imports them, for whatever backend.
        import torch._inductor.codegen.cuda_combined_scheduling
        import torch._inductor.cudagraph_trees
        from transformers import GPT2Config, GPT2LMHeadModel

        torch.manual_seed(0)
        dropout = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
        model = GPT2LMHeadModel(GPT2Config(n_embd=384, n_layer=6, n_head=6, **dropout)).to(dtype).to(device).train()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
        ids = torch.randint(0, model.config.vocab_size, (BATCH, TOKENS)).to(device)

        def loss_function(ids: torch.Tensor) -> torch.Tensor:
            logits = model(input_ids=ids, use_cache=False).logits[:, :-1]
            return torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), ids[:, 1:].flatten())

        loss_of = compile(loss_function, fullgraph=True)
        update = compile(optimizer.step)

        def call() -> torch.Tensor:
            optimizer.zero_grad()
            loss = loss_of(ids)
            loss.backward()
            update()
            return loss

        return call

    return workload


if __name__ == "__main__":
    main("benchmarks.train_step", build, ["step"])
