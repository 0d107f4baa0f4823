# SPDX-License-Identifier: Apache-2.0
"""Builds a small, complete FLUX.2 klein checkpoint out of the real classes, with random weights.

It has every part of a real one (transformer with double and single blocks and rotary embeddings
over four axes, VAE, Qwen3 text encoder with a chat template, tokenizer, scheduler) and loads with
`Flux2KleinPipeline.from_pretrained`. What it paints has no meaning, but depends on the prompt.

    python examples/make_tiny_flux2.py checkpoints/tiny-flux2
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from diffusers import (
    AutoencoderKLFlux2,
    FlowMatchEulerDiscreteScheduler,
    Flux2KleinPipeline,
    Flux2Transformer2DModel,
)
from transformers import Qwen2TokenizerFast, Qwen3Config, Qwen3ForCausalLM

# What the tokenizer learns from; other text is split into more pieces, down to bytes.
SENTENCES = [
    "A cat holding a sign that says hello world.",
    "A dog on a beach at sunset, oil painting.",
    "A photograph of a mountain lake with snow on the trees.",
    "A red bicycle in front of a yellow house.",
    "The moon over a quiet city, in the style of a woodcut.",
    "Two astronauts playing chess on the surface of Mars.",
]

# The form of Qwen's template, without tools and reasoning: thinking, when switched off, is an empty block.
CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}"
    "<|im_start|>assistant\n"
    "{%- if enable_thinking is defined and not enable_thinking -%}<think>\n\n</think>\n\n{%- endif -%}"
    "{%- endif -%}"
)

TEXT_WIDTH = 64
LATENT_CHANNELS = 8


def make_tokenizer() -> Qwen2TokenizerFast:
    tokenizer = Qwen2TokenizerFast().train_new_from_iterator(SENTENCES, vocab_size=512)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def make_text_encoder(tokenizer: Qwen2TokenizerFast) -> Qwen3ForCausalLM:
    """28 layers, because the pipeline reads the hidden states after the 9th, 18th and 27th."""
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=TEXT_WIDTH,
        intermediate_size=2 * TEXT_WIDTH,
        num_hidden_layers=28,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=1024,
        initializer_range=0.2,
        tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return Qwen3ForCausalLM(config)


def make_transformer(num_heads: int = 4) -> Flux2Transformer2DModel:
    head_dim = 128 // num_heads
    transformer = Flux2Transformer2DModel(
        in_channels=4 * LATENT_CHANNELS,
        num_layers=2,
        num_single_layers=4,
        attention_head_dim=head_dim,
        num_attention_heads=num_heads,
        joint_attention_dim=3 * TEXT_WIDTH,
        timestep_guidance_channels=64,
        axes_dims_rope=(head_dim // 4,) * 4,
        guidance_embeds=False,
    )
    with torch.no_grad():
        # The velocity it predicts is of the size of the noise, as that of a trained model is, and the
        # gates of the blocks are open, so that the prompt has its say.
        transformer.proj_out.weight.normal_(std=transformer.inner_dim**-0.5)
        for modulation in (
            transformer.double_stream_modulation_img,
            transformer.double_stream_modulation_txt,
            transformer.single_stream_modulation,
        ):
            modulation.linear.weight.mul_(4.0)
    return transformer


def make_vae() -> AutoencoderKLFlux2:
    vae = AutoencoderKLFlux2(
        block_out_channels=(16, 32, 32, 32),
        layers_per_block=1,
        latent_channels=LATENT_CHANNELS,
        norm_num_groups=8,
        sample_size=256,
    )
    with torch.no_grad():
        # Random convolutions paint noise; these blur, and mix the channels at random.
        blur = torch.tensor([1.0, 2.0, 1.0])
        kernel = torch.outer(blur, blur) / 16
        for module in vae.decoder.modules():
            if isinstance(module, torch.nn.Conv2d) and module.kernel_size == (3, 3):
                mixing = torch.randn(module.out_channels, module.in_channels) * module.in_channels**-0.5
                module.weight.copy_(mixing[:, :, None, None] * kernel)
        vae.bn.running_mean.normal_(std=0.1)
        vae.bn.running_var.uniform_(0.5, 1.5)
    return vae


def make_pipeline(seed: int = 0, num_heads: int = 4) -> Flux2KleinPipeline:
    """The pipeline in float32 on the CPU. The same seed gives the same weights.

    num_heads: of the transformer; tensor parallelism needs a multiple of its ranks (4 or 8)."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        tokenizer = make_tokenizer()
        return Flux2KleinPipeline(
            scheduler=FlowMatchEulerDiscreteScheduler(
                shift=3.0, use_dynamic_shifting=True, base_shift=0.5, max_shift=1.15, time_shift_type="exponential"
            ),
            vae=make_vae(),
            text_encoder=make_text_encoder(tokenizer).eval(),
            tokenizer=tokenizer,
            transformer=make_transformer(num_heads),
            is_distilled=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("directory", type=Path, help="where the checkpoint is saved")
    parser.add_argument("--seed", type=int, default=0, help="of the weights")
    arguments = parser.parse_args()
    pipeline = make_pipeline(arguments.seed)
    pipeline.save_pretrained(arguments.directory)
    parameters = sum(
        p.numel() for part in pipeline.components.values() if hasattr(part, "parameters") for p in part.parameters()
    )
    print(f"{arguments.directory}: {parameters / 1e6:.1f} million parameters")


if __name__ == "__main__":
    main()
