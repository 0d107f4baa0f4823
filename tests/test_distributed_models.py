# SPDX-License-Identifier: Apache-2.0
"""Whole models over several ranks: Diffusers' tensor and context parallelism, PyTorch's context parallelism, compiled
data parallelism, pipelines, checkpoints of other world sizes."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from distributed_training import Mlp, losses, seeded
from distributed_world import World
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.nn.functional import scaled_dot_product_attention

from tests.tiny_models import flux2_model

TOLERANCES = {torch.float32: 1e-4, torch.bfloat16: 2e-2}


@pytest.fixture(scope="module")
def world():
    two = World(2, TORCH_NEURONX_FALLBACK="error")
    yield two
    assert two.close() == [0, 0]


@pytest.fixture(scope="module")
def large_world():
    four = World(4, TORCH_NEURONX_FALLBACK="error")
    yield four
    assert four.close() == [0] * 4


def device(rank: int) -> torch.device:
    return torch.device("neuron", rank)


def close(actual: torch.Tensor, expected: torch.Tensor, tolerance: float = 1e-4) -> None:
    actual, expected = (tensor.detach().cpu().float() for tensor in (actual, expected))
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


def compiled(function: Callable) -> Callable:
    return torch.compile(function, backend="neuron", fullgraph=True, dynamic=False)


# -- transformers of Diffusers --------------------------------------------------------------------


def flux(heads: int):
    from diffusers import FluxTransformer2DModel

    model = FluxTransformer2DModel(
        in_channels=16,
        num_layers=1,
        num_single_layers=1,
        attention_head_dim=16,
        num_attention_heads=heads,
        joint_attention_dim=24,
        pooled_projection_dim=20,
        guidance_embeds=True,
        axes_dims_rope=(4, 4, 8),
    )
    return model, {
        "hidden_states": torch.randn(1, 16, 16),
        "encoder_hidden_states": torch.randn(1, 8, 24),
        "pooled_projections": torch.randn(1, 20),
        "timestep": torch.tensor([0.5]),
        "guidance": torch.tensor([3.5]),
        "img_ids": torch.randint(0, 4, (16, 3)).float(),
        "txt_ids": torch.zeros(8, 3),
    }


def flux2(heads: int):
    model = flux2_model(heads)
    return model, {
        "hidden_states": torch.randn(1, 16, 16),
        "encoder_hidden_states": torch.randn(1, 8, 24),
        "timestep": torch.tensor([0.5]),
        "img_ids": torch.randint(0, 4, (1, 16, 4)),
        "txt_ids": torch.zeros(1, 8, 4, dtype=torch.int64),
    }


def qwen_image(heads: int):
    """Its rotary embedding is complex, and its text has a mask."""
    from diffusers import QwenImageTransformer2DModel

    model = QwenImageTransformer2DModel(
        in_channels=16,
        out_channels=4,
        num_layers=1,
        attention_head_dim=16,
        num_attention_heads=heads,
        joint_attention_dim=24,
        axes_dims_rope=(8, 4, 4),
    )
    mask = torch.ones(1, 8, dtype=torch.int64)
    mask[:, 6:] = 0
    return model, {
        "hidden_states": torch.randn(1, 16, 16),
        "encoder_hidden_states": torch.randn(1, 8, 24),
        "encoder_hidden_states_mask": mask,
        "timestep": torch.tensor([0.5]),
        "img_shapes": [[(1, 4, 4)]],
    }


def converted(inputs: dict, dtype: torch.dtype, to: torch.device | str) -> dict:
    def convert(value):
        if not isinstance(value, torch.Tensor):
            return value
        return value.to(to, dtype) if value.is_floating_point() else value.to(to)

    return {name: convert(value) for name, value in inputs.items()}


def check_transformer(
    rank: int, size: int, make: Callable, dtype: torch.dtype, parallelize: Callable, mode: str = "eager"
) -> None:
    """The transformer, parallelized, gives what it gives whole on the CPU."""
    torch._dynamo.reset()
    model, inputs = seeded(lambda: make(4))
    model = model.to(dtype).eval()
    model.set_attention_backend("native")  # also for models to come, as any choice
    with torch.no_grad():
        (expected,) = model(**converted(inputs, dtype, "cpu"), return_dict=False)
        parallelize(model, rank, size)
        model.to(device(rank))
        if mode == "compiled":
            model.compile(backend="neuron", fullgraph=True, dynamic=False)
        (actual,) = model(**converted(inputs, dtype, device(rank)), return_dict=False)
    close(actual, expected, TOLERANCES[dtype])


def tensor_parallel(model: nn.Module, rank: int, size: int) -> None:
    from diffusers import TensorParallelConfig

    whole = sum(parameter.numel() for parameter in model.parameters())
    model.enable_parallelism(config=TensorParallelConfig(mesh=DeviceMesh("neuron", list(range(size)))))
    local = (p.to_local() if hasattr(p, "to_local") else p for p in model.parameters())
    assert sum(parameter.numel() for parameter in local) < whole


@pytest.mark.parametrize("make", [flux, flux2, qwen_image])
def test_tensor_parallel_transformer(world, make):
    world.run(check_transformer, make, torch.float32, tensor_parallel)
    world.run(check_transformer, make, torch.bfloat16, tensor_parallel)
    world.run(check_transformer, make, torch.float32, tensor_parallel, "compiled")


def test_compiled_tensor_parallel_transformer_in_half_precision(world):
    world.run(check_transformer, qwen_image, torch.bfloat16, tensor_parallel, "compiled")


def test_tensor_parallel_transformer_over_four_ranks(large_world):
    large_world.run(check_transformer, flux2, torch.float32, tensor_parallel)
    large_world.run(check_transformer, flux2, torch.float32, tensor_parallel, "compiled")


def check_heads_that_do_not_divide(rank: int, size: int) -> None:
    model, _ = seeded(lambda: flux(3))
    with pytest.raises(ValueError, match=r"tp_degree.* \(2\) must divide the number of attention heads \(3\)"):
        tensor_parallel(model, rank, size)


def test_heads_that_the_world_does_not_divide(world):
    world.run(check_heads_that_do_not_divide)


def ulysses(model: nn.Module, rank: int, size: int) -> None:
    from diffusers import ContextParallelConfig

    model.enable_parallelism(config=ContextParallelConfig(ulysses_degree=size))


def ring(model: nn.Module, rank: int, size: int) -> None:
    """By the log-sum-exp of each block of keys; Diffusers lets it take half types only."""
    from diffusers import ContextParallelConfig

    model.set_attention_backend("_native_flash")
    model.enable_parallelism(config=ContextParallelConfig(ring_degree=size))


def ring_of_ulysses(model: nn.Module, rank: int, size: int) -> None:
    from diffusers import ContextParallelConfig

    model.set_attention_backend("_native_flash")
    model.enable_parallelism(config=ContextParallelConfig(ring_degree=2, ulysses_degree=size // 2))


@pytest.mark.parametrize("mode", ["eager", "compiled"])
def test_context_parallel_transformer(world, mode):
    world.run(check_transformer, flux2, torch.float32, ulysses, mode)
    world.run(check_transformer, flux2, torch.bfloat16, ring, mode)


def test_context_parallel_with_a_mask_and_complex_embeddings(world):
    world.run(check_transformer, qwen_image, torch.float32, ulysses)


def test_ring_of_ulysses_groups(large_world):
    large_world.run(check_transformer, flux2, torch.bfloat16, ring_of_ulysses)


# -- attention over blocks of keys ----------------------------------------------------------------


def check_context_parallel(rank: int, size: int, causal: bool, rotation: str, backend: str | None) -> None:
    """PyTorch's own, forward and backward. Causal attention is balanced: each rank has an early and a late part."""
    from contextlib import nullcontext

    from torch.distributed.tensor.experimental import context_parallel
    from torch.distributed.tensor.experimental._attention import (
        _cp_options,
        context_parallel_unshard,
        set_rotate_method,
    )
    from torch.nn.attention import SDPBackend, sdpa_kernel

    set_rotate_method(rotation)
    _cp_options.enable_load_balance = causal
    mesh = init_device_mesh("neuron", (size,))
    # PyTorch joins log-sum-exps as they are, and they are padded to a multiple of 32.
    whole = [seeded(lambda: torch.randn(2, 4, 64 * size, 8), seed) for seed in range(3)]
    leaves = [tensor.clone().requires_grad_() for tensor in whole]
    expected = scaled_dot_product_attention(*leaves, is_causal=causal)
    expected.square().sum().backward()
    parts = [tensor.to(device(rank)) for tensor in whole]
    chosen = nullcontext() if backend is None else sdpa_kernel(getattr(SDPBackend, backend))
    with chosen, context_parallel(mesh, buffers=parts, buffer_seq_dims=[2, 2, 2]):
        query, key, value = (tensor.detach().requires_grad_() for tensor in parts)
        assert query.shape == (2, 4, 64, 8)
        output = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=causal)
        output.square().sum().backward()
        results = context_parallel_unshard(mesh, [output, query.grad, key.grad, value.grad], [2] * 4)
    for actual, reference in zip(results, [expected, *(leaf.grad for leaf in leaves)], strict=True):
        close(actual, reference)


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_context_parallel_attention(world, causal):
    world.run(check_context_parallel, causal, "allgather", "EFFICIENT_ATTENTION")
    world.run(check_context_parallel, causal, "alltoall", None)


def check_ring_attention(rank: int, size: int) -> None:
    """As a user writes it: blocks of keys go round, and the log-sum-exps of their results join these."""
    from torch.distributed import _functional_collectives as functional

    torch._dynamo.reset()
    following = [(r + 1) % size for r in range(size)]

    def ring_attention(query, key, value):
        output = logsumexp = None
        for step in range(size):
            part, part_logsumexp, *_ = torch.ops.aten._scaled_dot_product_flash_attention(query, key, value)
            part_logsumexp = part_logsumexp.unsqueeze(-1)
            if output is None:
                output, logsumexp = part, part_logsumexp
            else:
                output = output - torch.sigmoid(part_logsumexp - logsumexp) * (output - part)
                logsumexp = logsumexp - torch.nn.functional.logsigmoid(logsumexp - part_logsumexp)
            if step + 1 < size:
                both = torch.cat([key.flatten(), value.flatten()])
                both = functional.permute_tensor(both, following, dist.group.WORLD)
                key, value = (half.reshape(key.shape) for half in both.chunk(2))
        return output

    whole = [seeded(lambda: torch.randn(2, 3, 5 * size, 8), seed) for seed in range(3)]
    expected = scaled_dot_product_attention(*whole).chunk(size, 2)[rank]
    mine = [tensor.chunk(size, 2)[rank].contiguous().to(device(rank)) for tensor in whole]
    close(ring_attention(*mine), expected)
    close(compiled(ring_attention)(*mine), expected)


def test_ring_attention(world):
    world.run(check_ring_attention)


def check_attention_of_distributed_tensors(rank: int, size: int) -> None:
    from torch.distributed.tensor import Shard, distribute_tensor

    torch._dynamo.reset()
    mesh = init_device_mesh("neuron", (size,))
    whole = [seeded(lambda: torch.randn(2, 4, 6, 8), seed) for seed in range(3)]
    leaves = [tensor.clone().requires_grad_() for tensor in whole]
    expected = scaled_dot_product_attention(*leaves)
    expected.sum().backward()
    for attention in (scaled_dot_product_attention, compiled(scaled_dot_product_attention)):
        mine = [distribute_tensor(t.to(device(rank)), mesh, [Shard(1)]).requires_grad_() for t in whole]
        output = attention(*mine)
        close(output.full_tensor(), expected)
        output.sum().full_tensor().backward()
        for actual, reference in zip(mine, leaves, strict=True):
            close(actual.grad.full_tensor(), reference.grad)


def test_attention_of_distributed_tensors(world):
    world.run(check_attention_of_distributed_tensors)


# -- data parallelism -----------------------------------------------------------------------------


class Gathered(nn.Module):
    """A parametrization: the whole parameter of a sharded one. Its gradient is averaged and sharded again."""

    def forward(self, parameter):
        from torch.distributed.tensor import Partial, Replicate

        whole = parameter.redistribute(placements=[Replicate()])
        return whole.to_local(grad_placements=[Partial(reduce_op="avg")])


def check_sharding_by_parametrization(rank: int, size: int) -> None:
    from torch.distributed.tensor import Shard, distribute_tensor
    from torch.nn.utils import parametrize

    import torch_neuronx

    torch._dynamo.reset()
    mesh = init_device_mesh("neuron", (size,))
    reference, model = seeded(Mlp), seeded(Mlp).to(device(rank))
    for layer in (model.up, model.down):
        for name in ("weight", "bias"):
            shard = distribute_tensor(getattr(layer, name).detach(), mesh, [Shard(0)])
            layer.register_parameter(name, nn.Parameter(shard))
            parametrize.register_parametrization(layer, name, Gathered(), unsafe=True)

    def loss(model: Callable, x: torch.Tensor) -> torch.Tensor:
        return (model(x) - x).square().mean()

    x = seeded(lambda: torch.randn(2 * size, 16), 3)
    expected = loss(reference, x)
    expected.backward()
    torch_neuronx.clear_op_tracking()
    actual = compiled(lambda x: loss(model, x))(x.chunk(size)[rank].to(device(rank)))
    actual.backward()
    executed = torch_neuronx.get_executed_ops()
    assert "_c10d_functional::all_gather_into_tensor" in executed
    assert "_c10d_functional::reduce_scatter_tensor" in executed
    mean = actual.detach().clone()
    dist.all_reduce(mean, dist.ReduceOp.AVG)
    close(mean, expected)
    for layer in ("up", "down"):
        for name in ("weight", "bias"):
            gradient = getattr(model, layer).parametrizations[name].original.grad
            assert gradient.placements == (Shard(0),)
            close(gradient.full_tensor(), getattr(getattr(reference, layer), name).grad)


def test_compiled_sharding_by_parametrization(world):
    world.run(check_sharding_by_parametrization)


# -- pipelines and checkpoints --------------------------------------------------------------------


def check_pipeline(rank: int, size: int, compile_stage: bool) -> None:
    """Fill and drain (GPipe): the loss and each stage's gradients are those of the whole model."""
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    torch._dynamo.reset()
    layers = [seeded(Mlp, seed) for seed in range(size)]
    mine = copy.deepcopy(layers[rank]).to(device(rank))
    if compile_stage:
        mine.compile(backend="neuron", fullgraph=True, dynamic=False)
    stage = PipelineStage(mine, rank, size, device(rank))

    def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return (output - target).square().mean()

    schedule = ScheduleGPipe(stage, n_microbatches=4, loss_fn=loss)
    x, target = (seeded(lambda: torch.randn(8, 16), seed) for seed in (7, 8))
    expected = loss(nn.Sequential(*layers)(x), target)
    expected.backward()
    collected: list[torch.Tensor] = []
    arguments = (x.to(device(rank)),) if rank == 0 else ()
    options = {"target": target.to(device(rank)), "losses": collected} if rank == size - 1 else {}
    schedule.step(*arguments, **options)
    if collected:
        close(torch.stack([value.detach().cpu() for value in collected]).mean(), expected)
    for name, parameter in mine.named_parameters():
        close(parameter.grad, layers[rank].get_parameter(name).grad)


@pytest.mark.parametrize("compile_stage", [False, True], ids=["eager", "compiled"])
def test_pipeline_that_fills_and_drains(world, compile_stage):
    world.run(check_pipeline, compile_stage)


def trained(rank: int, size: int, seed: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    from torch.distributed.fsdp import fully_shard

    model = seeded(Mlp, seed).to(device(rank))
    fully_shard(model, mesh=init_device_mesh("neuron", (size,)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses(model, optimizer, [torch.ones(2, 16, device=device(rank))])
    return model, optimizer


def save_checkpoint(rank: int, size: int, folder: str) -> dict[str, torch.Tensor]:
    import torch.distributed.checkpoint as checkpoint
    from torch.distributed.checkpoint.state_dict import get_state_dict

    model, optimizer = trained(rank, size, seed=1)
    weights, state = get_state_dict(model, optimizer)
    checkpoint.save({"model": weights, "optimizer": state}, checkpoint_id=folder)
    whole = {name: parameter.full_tensor().detach().cpu() for name, parameter in model.named_parameters()}
    moments = {
        f"moment of {name}": optimizer.state[parameter]["exp_avg"].full_tensor().cpu()
        for name, parameter in model.named_parameters()
    }
    return {name: tensor.numpy() for name, tensor in (whole | moments).items()}


def load_checkpoint(rank: int, size: int, folder: str, expected: dict) -> None:
    import torch.distributed.checkpoint as checkpoint
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    model, optimizer = trained(rank, size, seed=2)
    weights, state = get_state_dict(model, optimizer)
    checkpoint.load({"model": weights, "optimizer": state}, checkpoint_id=folder)
    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=state)
    for name, parameter in model.named_parameters():
        assert parameter.to_local().shape[0] == parameter.shape[0] // size
        close(parameter.full_tensor(), torch.from_numpy(expected[name]), 0)
        moment = optimizer.state[parameter]["exp_avg"].full_tensor()
        close(moment, torch.from_numpy(expected[f"moment of {name}"]), 0)


def test_checkpoint_for_another_world_size(world, large_world, tmp_path):
    folder = str(tmp_path / "checkpoint")
    saved = world.run(save_checkpoint, folder)[0]
    large_world.run(load_checkpoint, folder, saved)
    back = str(tmp_path / "back")
    saved = large_world.run(save_checkpoint, back)[0]
    world.run(load_checkpoint, back, saved)
