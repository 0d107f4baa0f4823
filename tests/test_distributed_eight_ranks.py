# SPDX-License-Identifier: Apache-2.0
"""Eight ranks: FLUX.2 sharded over two, four and eight of them, and the cache that all fill together."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from distributed_world import World

from tests.tiny_models import flux2_model

RANKS = 8
CACHE = "TORCH_NEURONX_NEFF_CACHE_DIR"


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """With an empty cache of its own."""
    cache = tmp_path_factory.mktemp("eight") / "cache"
    cache.mkdir(mode=0o700)
    eight = World(RANKS, **{CACHE: str(cache)})
    yield eight
    assert eight.close() == [0] * RANKS


def shard(transformer: torch.nn.Module, ranks: int) -> None:
    """Over groups of so many neighbours."""
    from diffusers import TensorParallelConfig
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("neuron", (RANKS // ranks, ranks), mesh_dim_names=("group", "shard"))
    transformer.enable_parallelism(config=TensorParallelConfig(mesh=mesh["shard"]))


def make_transformer(dtype: torch.dtype) -> torch.nn.Module:
    torch.manual_seed(0)
    return flux2_model(heads=RANKS).to(dtype)


@torch.no_grad()
def check_transformer(rank: int, size: int, ranks: int, dtype: torch.dtype, compiled: bool, tolerance: float) -> None:
    transformer = make_transformer(dtype)
    ids = torch.cartesian_prod(torch.arange(1), torch.arange(4), torch.arange(4), torch.arange(1))
    inputs = {
        "hidden_states": torch.randn(1, len(ids), 16).to(dtype),
        "encoder_hidden_states": torch.randn(1, 8, 24).to(dtype),
        "timestep": torch.tensor([0.5], dtype=dtype),
        "img_ids": ids,
        "txt_ids": ids[:8] * 0,
    }
    expected = transformer(**inputs, return_dict=False)[0]
    assert expected.std() > 0.1
    shard(transformer, ranks)
    if rank >= ranks:
        return  # the first group is enough
    transformer.to("neuron")
    attention = transformer.transformer_blocks[0].attn
    assert attention.to_q.weight.to_local().shape[0] == attention.to_q.weight.shape[0] // ranks
    if compiled:
        transformer.compile(backend="neuron", fullgraph=True, dynamic=False)
    actual = transformer(**{name: value.to("neuron") for name, value in inputs.items()}, return_dict=False)[0]
    torch.testing.assert_close(actual.cpu(), expected, rtol=tolerance, atol=tolerance)
    torch._dynamo.reset()


F32, BF16 = (torch.float32, 1e-4), (torch.bfloat16, 2e-2)


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize(("dtype", "tolerance"), [F32, BF16], ids=["f32", "bf16"])
@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_sharded_transformer(world, ranks, dtype, tolerance, compiled):
    world.run(check_transformer, ranks, dtype, compiled, tolerance)


@torch.no_grad()
def paint(rank: int, size: int) -> list[torch.Tensor]:
    """The images of the sharded pipeline, eager and compiled; on rank 0 also what the whole one paints on the CPU."""
    from examples.make_tiny_flux2 import make_pipeline

    def run() -> torch.Tensor:
        return pipeline(
            prompt_embeds=embeddings.to(pipeline.device),
            height=64,
            width=64,
            num_inference_steps=2,
            generator=torch.Generator().manual_seed(0),
            output_type="pt",
        ).images.cpu()

    pipeline = make_pipeline(num_heads=RANKS)
    pipeline.set_progress_bar_config(disable=True)
    generator = torch.Generator().manual_seed(1)
    embeddings = torch.randn(1, 8, pipeline.transformer.config.joint_attention_dim, generator=generator)
    expected = [run()] if rank == 0 else []
    shard(pipeline.transformer, size)
    pipeline.to("neuron")
    eager = run()
    pipeline.transformer.compile_repeated_blocks(backend="neuron", fullgraph=True, dynamic=False)
    return [eager, run(), *expected]


def test_every_rank_paints_the_same_image(world):
    images = world.run(paint)
    eager, compiled, expected = images[0]
    assert expected.std() > 0.03
    torch.testing.assert_close(eager, expected, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(compiled, expected, rtol=1e-3, atol=1e-3)
    for mine in images.values():
        assert mine[0].equal(eager)
        assert mine[1].equal(compiled)


def train(rank: int, size: int) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 24), torch.nn.GELU(), torch.nn.Linear(24, 16)).to("neuron")
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        model(torch.ones(3, 16, device="neuron")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def count_compilations(rank: int, size: int) -> tuple[int, int]:
    from torch_neuronx.metrics import get_counter_value

    torch.neuron.synchronize()
    dist.barrier()
    programs = len(list(Path(os.environ[CACHE]).rglob("*.neff")))
    return get_counter_value("CompilationCache.TotalCompilations") or 0, programs


def test_each_program_was_compiled_once_by_all_ranks_together(world):
    """Those of the tests above, too."""
    world.run(train)
    world.run(check_transformer, RANKS, F32[0], True, F32[1])  # for one who runs this test alone
    counts = world.run(count_compilations)
    programs = counts[0][1]
    assert programs > 10
    assert sum(compiled for compiled, _ in counts.values()) == programs, counts
