# SPDX-License-Identifier: Apache-2.0
"""A Qwen3 of 150 million parameters with a static cache: a prompt of 512 tokens, and one token at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .peers import Build, main

PROMPT, CACHE = 512, 640


def build(case: str) -> Build:
    tokens = {"prefill": PROMPT, "decode": 1}[case]

    def workload(device: str, dtype: torch.dtype, compile: Callable[..., Any]) -> Callable[[], Any]:
        from transformers import Qwen3Config, Qwen3ForCausalLM, StaticCache

        torch.manual_seed(0)
        config = Qwen3Config(
            vocab_size=50_000,
            hidden_size=768,
            intermediate_size=2304,
            num_hidden_layers=12,
            num_attention_heads=12,
            num_key_value_heads=4,
            head_dim=64,
        )
        model = Qwen3ForCausalLM(config).to(dtype).to(device).eval()
        cache = StaticCache(config=config, max_cache_len=CACHE)
        forward = compile(model.forward, fullgraph=True)
        start = 0 if case == "prefill" else PROMPT
        ids = torch.randint(0, config.vocab_size, (1, tokens)).to(device)
        positions = torch.arange(start, start + tokens).to(device)
        position_ids = positions[None]
        # Written once, so that the cache exists before anything is compiled.
        with torch.no_grad():
            first = torch.arange(PROMPT).to(device)
            prompt = torch.randint(0, config.vocab_size, (1, PROMPT)).to(device)
            model(prompt, past_key_values=cache, cache_position=first, position_ids=first[None], logits_to_keep=1)

        def call() -> torch.Tensor:
            for layer in cache.layers:
                layer.cumulative_length.fill_(start)
            with torch.no_grad():
                return forward(
                    ids, past_key_values=cache, cache_position=positions, position_ids=position_ids, logits_to_keep=1
                ).logits

        return call

    return workload


if __name__ == "__main__":
    main("benchmarks.compiled_llm", build, ["prefill", "decode"], rounds=15)
