# SPDX-License-Identifier: Apache-2.0
"""Small models of each kind, on the CPU, with random weights.

Each function returns the model, the keyword arguments of a call, and the loss: a function of what the model returned
and of `move`, which moves a tensor to the model's device.
"""

import torch


def flux2_model(heads=2):
    from diffusers import Flux2Transformer2DModel

    return Flux2Transformer2DModel(
        in_channels=16,
        num_layers=1,
        num_single_layers=1,
        attention_head_dim=16,
        num_attention_heads=heads,
        joint_attention_dim=24,
        timestep_guidance_channels=32,
        axes_dims_rope=(4, 4, 4, 4),
        guidance_embeds=False,
    )


def flux2():
    model = flux2_model()
    text, image = 6, 16
    inputs = {
        "hidden_states": torch.randn(1, image, 16),
        "encoder_hidden_states": torch.randn(1, text, 24),
        "timestep": torch.tensor([0.5]),
        "img_ids": torch.randint(0, 4, (1, image, 4)),
        "txt_ids": torch.zeros(1, text, 4, dtype=torch.int64),
        "return_dict": False,
    }
    target = torch.randn(1, image, 16)
    return model, inputs, lambda output, move: torch.nn.functional.mse_loss(output[0], move(target))


def qwen3_model(**options):
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(
        vocab_size=99,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        **options,
    )
    return Qwen3ForCausalLM(config)


def gpt2_model(**options):
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config(vocab_size=99, n_embd=32, n_layer=2, n_head=4, **options))


def qwen3():
    model = qwen3_model()
    tokens = torch.randint(0, 99, (2, 12))
    return model, {"input_ids": tokens, "labels": tokens}, lambda output, move: output.loss


def gpt2():
    model = gpt2_model(n_positions=32, bos_token_id=1, eos_token_id=2)
    model.loss_type = "ForCausalLM"  # as for a checkpoint; the library warns, and breaks the graph, when it is None
    tokens = torch.randint(0, 99, (2, 12))
    return model, {"input_ids": tokens, "labels": tokens}, lambda output, move: output.loss


def bert():
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        vocab_size=99,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=32,
        num_labels=3,
    )
    mask = torch.ones(2, 12, dtype=torch.int64)
    mask[1, 8:] = 0
    inputs = {
        "input_ids": torch.randint(0, 99, (2, 12)),
        "attention_mask": mask,
        "labels": torch.tensor([0, 2]),
    }
    return BertForSequenceClassification(config), inputs, lambda output, move: output.loss


def sdxl_unet():
    from diffusers import UNet2DConditionModel

    model = UNet2DConditionModel(
        sample_size=8,
        block_out_channels=(16, 32),
        norm_num_groups=8,
        layers_per_block=1,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        attention_head_dim=(2, 4),
        use_linear_projection=True,
        addition_embed_type="text_time",
        addition_time_embed_dim=8,
        transformer_layers_per_block=(1, 1),
        projection_class_embeddings_input_dim=64,
        cross_attention_dim=24,
    )
    inputs = {
        "sample": torch.randn(1, 4, 8, 8),
        "timestep": torch.tensor([10]),
        "encoder_hidden_states": torch.randn(1, 5, 24),
        "added_cond_kwargs": {"text_embeds": torch.randn(1, 16), "time_ids": torch.randn(1, 6)},
    }
    target = torch.randn(1, 4, 8, 8)
    return model, inputs, lambda output, move: torch.nn.functional.mse_loss(output.sample, move(target))


def autoencoder():
    from diffusers import AutoencoderKL

    model = AutoencoderKL(
        block_out_channels=(16, 32),
        norm_num_groups=8,
        layers_per_block=1,
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        latent_channels=4,
    )
    image = torch.randn(1, 3, 16, 16)
    return model, {"sample": image}, lambda output, move: torch.nn.functional.l1_loss(output.sample, move(image))


def move_to(device):
    def move(value):
        if isinstance(value, torch.Tensor):
            return value.to(device)
        return {k: move(v) for k, v in value.items()} if isinstance(value, dict) else value

    return move
