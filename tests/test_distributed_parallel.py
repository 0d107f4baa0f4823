# SPDX-License-Identifier: Apache-2.0
"""What PyTorch builds on process groups: DTensor, tensor, data and pipeline parallelism, checkpoints, graphs."""

from __future__ import annotations

import copy
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from distributed_training import Mlp, losses, seeded
from distributed_world import World
from torch import nn
from torch.distributed.device_mesh import init_device_mesh


@pytest.fixture(scope="module")
def world():
    two = World(2)
    yield two
    assert two.close() == [0, 0]


def device(rank: int) -> torch.device:
    return torch.device("neuron", torch.neuron.current_device())


def close(actual: torch.Tensor, expected: torch.Tensor, tolerance: float = 1e-4) -> None:
    torch.testing.assert_close(actual.detach().cpu(), expected.detach().cpu(), rtol=tolerance, atol=tolerance)


def check_dtensor(rank: int, size: int) -> None:
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("neuron", (size,))
    whole = seeded(lambda: torch.randn(6, 10))
    rows = distribute_tensor(whole.to(device(rank)), mesh, [Shard(0)])
    assert rows.to_local().shape == (3, 10)
    close(rows.full_tensor(), whole)
    close(rows.redistribute(placements=[Shard(1)]).to_local(), whole.chunk(size, 1)[rank])
    close(rows.redistribute(placements=[Replicate()]).to_local(), whole)
    partial = DTensor.from_local(whole.to(device(rank)), mesh, [Partial()])
    close(partial.redistribute(placements=[Shard(0)]).to_local(), (size * whole).chunk(size)[rank])
    close(partial.full_tensor(), size * whole)
    # Five rows by two ranks: uneven.
    uneven = distribute_tensor(whole[:5].to(device(rank)), mesh, [Shard(0)])
    assert len(uneven.to_local()) == 3 - rank
    close((uneven + 1).full_tensor(), whole[:5] + 1)
    close(rows.sum().full_tensor(), whole.sum())


def test_dtensor(world):
    world.run(check_dtensor)


def check_tensor_parallel(rank: int, size: int, dtype: torch.dtype, tolerance: float, compiled: bool) -> None:
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh("neuron", (size,))
    reference = seeded(Mlp).to(dtype)
    model = copy.deepcopy(reference).to(device(rank))
    whole = torch.neuron.memory_allocated()
    parallelize_module(model, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    assert model.up.weight.to_local().shape == (64 // size, 16)
    assert torch.neuron.memory_allocated() < whole
    x = seeded(lambda: torch.randn(3, 16).to(dtype), 1)
    run = torch.compile(model, backend="neuron", fullgraph=True, dynamic=False) if compiled else model
    ours = x.to(device(rank)).requires_grad_()
    theirs = x.clone().requires_grad_()
    expected = reference(theirs)
    actual = run(ours)
    close(actual.float(), expected.float(), tolerance)
    if not compiled:
        actual.sum().backward()
        expected.sum().backward()
        close(ours.grad.float(), theirs.grad.float(), tolerance)
        close(model.up.weight.grad.full_tensor().float(), reference.up.weight.grad.float(), tolerance)


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.bfloat16, 2e-2)], ids=["f32", "bf16"])
def test_tensor_parallel(world, dtype, tolerance, compiled):
    world.run(check_tensor_parallel, dtype, tolerance, compiled)


def check_graph_that_nobody_here_waits_for(rank: int, size: int) -> None:
    """Rank 1 has all: what it needs of rank 0 is launched there, and rank 0 does something else."""
    import torch.distributed._functional_collectives as collectives

    store = dist.distributed_c10d._get_default_store()
    total = torch.compile(
        lambda x: collectives.all_reduce(x, "sum", dist.group.WORLD), backend="neuron", fullgraph=True, dynamic=False
    )
    x = torch.ones(2, device=device(rank))
    torch.neuron.synchronize()
    if rank == 0:
        result = total(x)
        store.set("launched", "")
        store.wait(["done"], timedelta(seconds=30))
    else:
        store.wait(["launched"], timedelta(seconds=30))
        result = total(x)
        close(result, torch.full((2,), float(size)))
        store.set("done", "")
    close(result, torch.full((2,), float(size)))


def test_a_graph_that_nobody_here_waits_for(world):
    world.run(check_graph_that_nobody_here_waits_for)


def check_data_parallel(rank: int, size: int, kind: str, compiled: bool) -> None:
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    torch._dynamo.reset()
    batches = [seeded(lambda: torch.randn(2 * size, 16), seed) for seed in range(4)]
    reference = seeded(Mlp)
    expected = losses(reference, torch.optim.AdamW(reference.parameters(), lr=1e-2), batches)

    model: nn.Module = seeded(Mlp).to(device(rank))
    if kind == "ddp":
        model = DistributedDataParallel(model)
    else:
        mesh = init_device_mesh("neuron", (size,))
        fully_shard(model.up, mesh=mesh)
        fully_shard(model, mesh=mesh)
    mine = [batch.chunk(size)[rank].to(device(rank)) for batch in batches]
    run = torch.compile(model, backend="neuron", dynamic=False) if compiled else model
    values = torch.tensor(losses(run, torch.optim.AdamW(model.parameters(), lr=1e-2), mine), device=device(rank))
    dist.all_reduce(values, dist.ReduceOp.AVG)
    close(values, torch.tensor(expected), 1e-3)


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_data_parallel(world, kind, compiled):
    world.run(check_data_parallel, kind, compiled)


def check_checkpoint(rank: int, size: int, folder: str) -> None:
    import torch.distributed.checkpoint as checkpoint
    from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
    from torch.distributed.fsdp import fully_shard

    def sharded(seed: int) -> nn.Module:
        model = seeded(Mlp, seed).to(device(rank))
        fully_shard(model, mesh=init_device_mesh("neuron", (size,)))
        return model

    saved, loaded = sharded(1), sharded(2)
    checkpoint.save(get_model_state_dict(saved), checkpoint_id=folder)
    state = get_model_state_dict(loaded)
    checkpoint.load(state, checkpoint_id=folder)
    set_model_state_dict(loaded, state)
    close(loaded.up.weight.full_tensor(), seeded(Mlp, 1).up.weight, 0)


def test_checkpoint_of_a_sharded_model(world, tmp_path):
    world.run(check_checkpoint, str(tmp_path / "checkpoint"))


def check_pipeline(rank: int, size: int) -> None:
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    layers = [seeded(Mlp, seed) for seed in range(size)]
    stage = PipelineStage(copy.deepcopy(layers[rank]).to(device(rank)), rank, size, device(rank))

    def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return (output - target).square().mean()

    schedule = Schedule1F1B(stage, n_microbatches=4, loss_fn=loss)
    x, target = (seeded(lambda: torch.randn(8, 16), seed) for seed in (7, 8))
    if rank == 0:
        schedule.step(x.to(device(rank)))
    else:
        collected: list[torch.Tensor] = []
        schedule.step(target=target.to(device(rank)), losses=collected)
        expected = loss(layers[1](layers[0](x)), target)
        close(torch.stack([value.cpu() for value in collected]).mean(), expected)
    loss(layers[1](layers[0](x)), target).backward()
    close(stage.submod.up.weight.grad, layers[rank].up.weight.grad)


def test_pipeline(world):
    world.run(check_pipeline)


def check_compiled_collectives(rank: int, size: int) -> None:
    from torch.distributed import _functional_collectives as functional

    group = dist.group.WORLD

    def several(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        # Independent of each other, so their order is the compiler's choice: it must be one for all ranks.
        return (
            functional.all_reduce(x, "sum", group),
            functional.all_reduce(x * 2, "max", group),
            functional.all_reduce(x, "avg", group),
            functional.all_gather_tensor(x, 0, group),
            functional.all_gather_tensor(x, 1, group),
            functional.reduce_scatter_tensor(x, "sum", 0, group),
            functional.all_to_all_single(x, None, None, group),
            functional.broadcast(x, 1, group),
            *functional.all_reduce_coalesced([x, x + 1], "sum", group),
        )

    x = seeded(lambda: torch.randn(4, 6), rank).to(device(rank))
    compiled = torch.compile(several, backend="neuron", fullgraph=True, dynamic=False)
    for actual, expected in zip(compiled(x), several(x), strict=True):
        close(actual, expected + 0)


def test_collectives_in_a_graph(world):
    world.run(check_compiled_collectives)


def test_collectives_in_a_graph_on_two_hosts():
    world = World(2, hosts=2)
    world.run(check_compiled_collectives)
    world.run(check_data_parallel, "fsdp", False)
    assert world.close() == [0, 0]


def check_uneven_exchange(rank: int, size: int) -> None:
    from torch.distributed import _functional_collectives as functional

    torch._dynamo.reset()
    group = dist.group.WORLD
    # Rows that rank r sends to rank d; a rank may send none, or get none.
    for rows in ([[1, 3], [0, 2]], [[0, 0], [3, 0]]):
        sent, received = rows[rank], [rows[r][rank] for r in range(size)]

        def exchange(x, sent=sent, received=received):
            return functional.all_to_all_single(x * 1, received, sent, group)

        x = (torch.arange(sum(sent) * 3.0).reshape(-1, 3) + 100 * rank).to(device(rank))
        leaves = [x.clone().requires_grad_() for _ in range(2)]
        run = torch.compile(exchange, backend="neuron", fullgraph=True, dynamic=False)
        ours, theirs = run(leaves[0]), exchange(leaves[1])
        assert ours.shape == (sum(received), 3)
        close(ours, theirs + 0, 0)
        close(run(x), theirs + 0, 0)  # without a backward pass
        (2 * ours).sum().backward()
        (2 * theirs).sum().backward()
        close(leaves[0].grad, leaves[1].grad, 0)


def test_uneven_exchange_in_a_graph(world):
    world.run(check_uneven_exchange)


def check_collective_that_one_rank_needs(rank: int, size: int) -> None:
    """The program of a rank that has no use for the result takes part all the same."""
    from torch.distributed import _functional_collectives as functional

    torch._dynamo.reset()

    def total(x: torch.Tensor) -> torch.Tensor:
        summed = functional.all_reduce(x, "sum", dist.group.WORLD)
        return summed if rank == 0 else x + 1

    x = torch.full((3,), 5.0, device=device(rank))
    result = torch.compile(total, backend="neuron", fullgraph=True, dynamic=False)(x)
    close(result, torch.full((3,), 10.0 if rank == 0 else 6.0), 0)


def test_a_collective_that_one_rank_needs(world):
    world.run(check_collective_that_one_rank_needs)


def check_forms_of_compiled_collectives(rank: int, size: int) -> None:
    from torch.distributed import _functional_collectives as functional

    group, ops, old = dist.group.WORLD, torch.ops._c10d_functional, torch.ops._c10d_functional_autograd
    name = group.group_name

    def of_lists(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (
            *functional.all_reduce_coalesced([x, x * 2], "sum", group),
            *functional.all_gather_into_tensor_coalesced([x, x * 2], group),
            *functional.reduce_scatter_tensor_coalesced([x, x * 2], "sum", [0, 0], group),
        )

    def into_arguments(x: torch.Tensor, gathered: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ops.all_gather_into_tensor_out(x, size, name, out=gathered)
        scattered = torch.empty(x.shape[0] // size, *x.shape[1:], device=x.device)
        ops.reduce_scatter_tensor_out(x, "sum", size, name, out=scattered)
        return ops.wait_tensor(gathered), ops.wait_tensor(scattered)

    def in_place(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """PyTorch turns these into functional ones."""
        total, gathered = x * 2, torch.empty(size * x.shape[0], *x.shape[1:], device=x.device)
        scattered, exchanged = torch.empty(x.shape[0] // size, *x.shape[1:], device=x.device), torch.empty_like(x)
        parts = [torch.empty_like(x) for _ in range(size)]
        dist.all_reduce(total)
        dist.all_gather_into_tensor(gathered, x)
        dist.reduce_scatter_tensor(scattered, x)
        dist.all_to_all_single(exchanged, x)
        dist.all_gather(parts, x)
        return total, gathered, scattered, exchanged, *parts

    def of_older_programs(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        equal = [x.shape[0] // size] * size
        return (
            ops.wait_tensor(old.all_gather_into_tensor(x * 1, size, name)),
            ops.wait_tensor(old.reduce_scatter_tensor(x * 1, "sum", size, name)),
            ops.wait_tensor(old.all_to_all_single(x * 1, equal, equal, name)),
        )

    def along_other_dimensions(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (
            functional.all_gather_tensor(x, 1, group),
            functional.reduce_scatter_tensor(x, "sum", 1, group),
            functional.all_reduce(x, "sum", group),
        )

    x = seeded(lambda: torch.randn(4, 6), rank).to(device(rank))
    for function in (of_lists, into_arguments, in_place, of_older_programs, along_other_dimensions):
        torch._dynamo.reset()
        compiled = torch.compile(function, backend="neuron", fullgraph=True, dynamic=False)
        more = [[torch.zeros(8, 6, device=x.device)] if function is into_arguments else [] for _ in range(2)]
        for actual, expected in zip(compiled(x, *more[0]), function(x, *more[1]), strict=True):
            close(actual, expected + 0)
        for actual, expected in zip(*more, strict=True):
            close(actual, expected)
        if function in (of_lists, of_older_programs, along_other_dimensions):
            gradients = []
            for run in (compiled, function):
                leaf = x.clone().requires_grad_()
                sum((result * result.detach()).sum() for result in run(leaf)).backward()
                gradients.append(leaf.grad)
            close(*gradients)


def test_forms_of_collectives_in_a_graph(world):
    world.run(check_forms_of_compiled_collectives)


def check_groups_share_a_program(rank: int, size: int) -> int:
    from torch.distributed import _functional_collectives as functional

    from torch_neuronx.metrics import get_counter_value

    # A group of each rank alone: c10d gives them different names.
    groups = [dist.new_group([r]) for r in range(size)]
    compiled = torch.compile(
        lambda x: functional.all_reduce(x.sin(), "sum", groups[rank]) + 1, backend="neuron", fullgraph=True
    )
    before = get_counter_value("CompilationCache.TotalCompilations") or 0
    x = torch.full((5, 3), 2.0)
    close(compiled(x.to(device(rank))), x.sin() + 1)
    dist.barrier()
    return get_counter_value("CompilationCache.TotalCompilations") - before


def test_ranks_with_different_group_names_share_a_program(world):
    assert sum(world.run(check_groups_share_a_program).values()) == 1
