# SPDX-License-Identifier: Apache-2.0
"""The backend `neuron` of torch.distributed: what its collectives compute."""

from __future__ import annotations

import functools
import operator

import pytest
import torch
import torch.distributed as dist
from distributed_world import World

FLOATS = [torch.float32, torch.bfloat16, torch.float16, torch.float64]
INTEGERS = [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64]
FLOAT8 = [torch.float8_e4m3fn, torch.float8_e5m2]


@pytest.fixture(scope="module", params=[1, 2], ids=["one host", "two hosts"])
def world(request):
    four = World(4, hosts=request.param)
    yield four
    assert four.close() == [0, 0, 0, 0]


@functools.cache
def subgroup(ranks: tuple[int, ...]) -> dist.ProcessGroup:
    """All ranks of the world call this in the same order."""
    return dist.new_group(list(ranks))


def values(rank: int, count: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    """What a rank holds; every rank can compute it for the others."""
    generator = torch.Generator().manual_seed(1000 * seed + rank)
    if dtype == torch.bool:
        return torch.randint(0, 2, (count,), generator=generator).bool()
    if dtype.is_floating_point or dtype.is_complex:
        # Sums and products of these are exact in every dtype but complex and float8.
        small = torch.randint(1, 4, (count,), generator=generator)
        return small.to(torch.float32).to(dtype)
    return torch.randint(1, 4, (count,), generator=generator).to(dtype)


def same(actual: torch.Tensor, expected: torch.Tensor) -> None:
    actual = actual.cpu()
    if actual.dtype in FLOAT8:
        actual, expected = actual.float(), expected.float()
    torch.testing.assert_close(actual, expected, rtol=0, atol=0)


REDUCTIONS = {
    "SUM": operator.add,
    "PRODUCT": operator.mul,
    "MIN": torch.minimum,
    "MAX": torch.maximum,
    "BAND": operator.and_,
    "BOR": operator.or_,
    "BXOR": operator.xor,
}


def expected_reduction(name: str, tensors: list[torch.Tensor]) -> torch.Tensor:
    dtype = tensors[0].dtype
    if name == "AVG":
        total = functools.reduce(operator.add, tensors)
        return total / len(tensors) if not dtype.is_floating_point else (total.double() / len(tensors)).to(dtype)
    wide = [t.float() if dtype in FLOAT8 else t for t in tensors]
    if dtype == torch.bool and name == "SUM":
        return functools.reduce(torch.logical_or, wide)
    if dtype == torch.bool and name == "PRODUCT":
        return functools.reduce(torch.logical_and, wide)
    return functools.reduce(REDUCTIONS[name], wide).to(dtype)


def check_all_reduce(rank: int, size: int, name: str, dtype: torch.dtype) -> None:
    # One round, several rounds, sections of unequal length.
    for count in (1, 7, 5000, 300_001):
        everybody = [values(r, count, dtype) for r in range(size)]
        tensor = everybody[rank].to("neuron")
        dist.all_reduce(tensor, getattr(dist.ReduceOp, name))
        same(tensor, expected_reduction(name, everybody))


CASES = [
    *[(name, dtype) for name in ("SUM", "AVG", "PRODUCT", "MIN", "MAX") for dtype in (torch.float32, torch.bfloat16)],
    *[("SUM", dtype) for dtype in (torch.float16, torch.float64, *FLOAT8)],
    *[(name, torch.int32) for name in ("SUM", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR")],
    *[("SUM", dtype) for dtype in (torch.int8, torch.uint8, torch.int16, torch.int64)],
    *[(name, torch.bool) for name in ("SUM", "PRODUCT", "MIN", "MAX", "BXOR")],
    ("SUM", torch.complex64),
]


@pytest.mark.parametrize(("name", "dtype"), CASES, ids=lambda case: str(case).removeprefix("torch."))
def test_all_reduce(world, name, dtype):
    world.run(check_all_reduce, name, dtype)


def check_same_bits_everywhere(rank: int, size: int) -> None:
    tensor = torch.randn(100_003, generator=torch.Generator().manual_seed(rank)).bfloat16().to("neuron")
    dist.all_reduce(tensor)
    copies = [torch.empty_like(tensor) for _ in range(size)]
    dist.all_gather(copies, tensor)
    for copy in copies:
        same(copy, tensor.cpu())


def test_all_ranks_get_the_same_bits(world):
    world.run(check_same_bits_everywhere)


def check_all_gather(rank: int, size: int, dtype: torch.dtype) -> None:
    for count in (1, 5000, 700_000):
        everybody = [values(r, count, dtype) for r in range(size)]
        mine = everybody[rank].to("neuron")
        listed = [torch.empty_like(mine) for _ in range(size)]
        dist.all_gather(listed, mine)
        for got, wanted in zip(listed, everybody, strict=True):
            same(got, wanted)
        whole = torch.empty(size * count, dtype=dtype, device="neuron")
        dist.all_gather_into_tensor(whole, mine)
        same(whole, torch.cat(everybody))
        # In place: the input is a part of the output.
        parts = torch.zeros(size, count, dtype=dtype, device="neuron")
        parts[rank].copy_(mine)
        dist.all_gather_into_tensor(parts.view(-1), parts[rank])
        same(parts, torch.stack(everybody))


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS, torch.bool, torch.complex64], ids=str)
def test_all_gather(world, dtype):
    world.run(check_all_gather, dtype)


def check_uneven(rank: int, size: int) -> None:
    counts = [0, 3, 70_000, 1]
    everybody = [values(r, counts[r], torch.float32) for r in range(size)]
    outputs = [torch.empty(count, device="neuron") for count in counts]
    dist.all_gather(outputs, everybody[rank].to("neuron"))
    for got, wanted in zip(outputs, everybody, strict=True):
        same(got, wanted)
    # Rank i gives rank j i + 2 j rows of 3.
    rows_in = [rank + 2 * j for j in range(size)]
    rows_out = [i + 2 * rank for i in range(size)]
    given = torch.cat([torch.full((rows_in[j], 3), 10.0 * rank + j) for j in range(size)])
    taken = torch.empty(sum(rows_out), 3, device="neuron")
    dist.all_to_all_single(taken, given.to("neuron"), rows_out, rows_in)
    same(taken, torch.cat([torch.full((rows_out[i], 3), 10.0 * i + rank) for i in range(size)]))
    # Reduce-scatter of parts of different sizes.
    parts = [values(rank, counts[r], torch.float32, seed=r).to("neuron") for r in range(size)]
    result = torch.empty(counts[rank], device="neuron")
    dist.reduce_scatter(result, parts)
    same(result, sum(values(r, counts[rank], torch.float32, seed=rank) for r in range(size)))
    for empty in (torch.empty(0, device="neuron"), torch.empty(3, 0, device="neuron")):
        dist.all_reduce(empty)
        dist.broadcast(empty, 0)


def test_uneven_and_empty_tensors(world):
    world.run(check_uneven)


def check_reduce_scatter(rank: int, size: int) -> None:
    for count in (2, 90_000):
        inputs = [values(r, size * count, torch.bfloat16) for r in range(size)]
        output = torch.empty(count, dtype=torch.bfloat16, device="neuron")
        dist.reduce_scatter_tensor(output, inputs[rank].to("neuron"))
        expected = sum(inputs).view(size, count)[rank]
        same(output, expected)
        dist.reduce_scatter(output, list(inputs[rank].to("neuron").chunk(size)), dist.ReduceOp.MAX)
        same(output, functools.reduce(torch.maximum, inputs).view(size, count)[rank])


def test_reduce_scatter(world):
    world.run(check_reduce_scatter)


def check_rooted(rank: int, size: int) -> None:
    for root in range(size):
        for count in (3, 400_000):
            everybody = [values(r, count, torch.float32, seed=root) for r in range(size)]
            tensor = everybody[rank].to("neuron")
            dist.broadcast(tensor, root)
            same(tensor, everybody[root])

            tensor = everybody[rank].to("neuron")
            dist.reduce(tensor, root)
            same(tensor, sum(everybody) if rank == root else everybody[rank])

            mine = everybody[rank].to("neuron")
            places = [torch.empty_like(mine) for _ in range(size)] if rank == root else None
            dist.gather(mine, places, root)
            for got, wanted in zip(places or [], everybody, strict=rank == root):
                same(got, wanted)

            parts = [part.to("neuron") for part in everybody] if rank == root else None
            dist.scatter(mine, parts, root)
            same(mine, everybody[rank])


def test_broadcast_reduce_gather_scatter(world):
    world.run(check_rooted)


def check_all_to_all(rank: int, size: int) -> None:
    for count in (1, 50_000):
        given = [values(rank, count, torch.int64, seed=j).to("neuron") for j in range(size)]
        taken = [torch.empty_like(tensor) for tensor in given]
        dist.all_to_all(taken, given)
        for i, tensor in enumerate(taken):
            same(tensor, values(i, count, torch.int64, seed=rank))


def test_all_to_all(world):
    world.run(check_all_to_all)


def check_messages(rank: int, size: int) -> None:
    right, left = (rank + 1) % size, (rank - 1) % size
    for count in (1, 1_000_000):
        # Everybody sends first: nobody may wait for the receiver.
        given = values(rank, count, torch.float32).to("neuron")
        taken = torch.empty_like(given)
        work = dist.isend(given, right)
        dist.recv(taken, left)
        work.wait()
        same(taken, values(left, count, torch.float32))
        operations = [dist.P2POp(dist.isend, given, left), dist.P2POp(dist.irecv, taken, right)]
        for work in dist.batch_isend_irecv(operations):
            work.wait()
        same(taken, values(right, count, torch.float32))
    # Tags: the second message is received first.
    if rank == 0:
        dist.send(torch.full((3,), 1.0, device="neuron"), 1, tag=1)
        dist.send(torch.full((3,), 2.0, device="neuron"), 1, tag=2)
    elif rank == 1:
        first, second = (torch.empty(3, device="neuron") for _ in range(2))
        dist.recv(second, 0, tag=2)
        dist.recv(first, 0, tag=1)
        assert (first[0].item(), second[0].item()) == (1.0, 2.0)
    # From any rank.
    if rank == 2:
        taken = torch.empty(1, device="neuron")
        senders = {dist.recv(taken) for _ in range(size - 1)}
        assert senders == {0, 1, 3}
    else:
        dist.send(torch.ones(1, device="neuron"), 2)


def test_messages(world):
    world.run(check_messages)


def check_asynchronous(rank: int, size: int) -> None:
    tensors = [values(rank, 50_000, torch.float32, seed=i).to("neuron") for i in range(8)]
    # What the collective takes is what the device has computed by then.
    works = [dist.all_reduce(tensor.mul_(2), async_op=True) for tensor in tensors]
    dist.barrier()
    for i, (work, tensor) in enumerate(zip(works, tensors, strict=True)):
        assert work.wait()
        assert work.is_completed()
        assert work.is_success()
        same(tensor + 1, 2 * sum(values(r, 50_000, torch.float32, seed=i) for r in range(size)) + 1)
    tensor = torch.ones(4, device="neuron")
    future = dist.all_reduce(tensor, async_op=True).get_future().then(lambda done: done.value()[0] * 10)
    same(future.wait(), torch.full((4,), 10.0 * size))
    # Groups in different orders on different ranks.
    one, other = subgroup((0, 1, 2, 3)), subgroup((3, 2, 1, 0))
    a, b = torch.ones(3, device="neuron"), torch.ones(3, device="neuron")
    order = [(one, a), (other, b)] if rank % 2 == 0 else [(other, b), (one, a)]
    for work in [dist.all_reduce(tensor, group=group, async_op=True) for group, tensor in order]:
        work.wait()
    same(a + b, torch.full((3,), 2.0 * size))


def test_asynchronous_work(world):
    world.run(check_asynchronous)


def check_groups(rank: int, size: int) -> None:
    pairs = [subgroup((0, 1)), subgroup((2, 3)), subgroup((3, 1))]
    for ranks, group in zip(((0, 1), (2, 3), (1, 3)), pairs, strict=True):
        if rank not in ranks:
            continue
        tensor = torch.full((70_000,), float(rank), device="neuron")
        assert dist.get_backend(group) == "neuron"
        dist.all_reduce(tensor, group=group)
        same(tensor, torch.full((70_000,), float(sum(ranks))))
        gathered = [torch.empty(1, device="neuron") for _ in ranks]
        dist.all_gather(gathered, torch.full((1,), float(rank), device="neuron"), group=group)
        assert [t.item() for t in gathered] == [float(dist.get_global_rank(group, i)) for i in range(2)]


def test_subgroups(world):
    world.run(check_groups)


def check_objects(rank: int, size: int) -> None:
    everybody = [None] * size
    dist.all_gather_object(everybody, {"rank": rank, "text": "x" * rank})
    assert everybody == [{"rank": r, "text": "x" * r} for r in range(size)]
    objects = [("from", 2)] if rank == 2 else [None]
    dist.broadcast_object_list(objects, src=2)
    assert objects == [("from", 2)]


def test_object_collectives(world):
    world.run(check_objects)


def check_premultiplied(rank: int, size: int, dtype: torch.dtype) -> None:
    for factor in (0.5, torch.tensor([0.5], device="neuron")):
        operation = dist.ReduceOp.PREMUL_SUM(factor)
        everybody = [values(r, size * 300, dtype) for r in range(size)]
        expected = sum(tensor * 0.5 for tensor in everybody)
        tensor = everybody[rank].to("neuron")
        dist.all_reduce(tensor, operation)
        same(tensor, expected)
        tensor = everybody[rank].to("neuron")
        dist.reduce(tensor, 1, operation)
        same(tensor, expected if rank == 1 else everybody[rank])
        tensor = everybody[rank].to("neuron")
        part = torch.empty(300, dtype=dtype, device="neuron")
        dist.reduce_scatter_tensor(part, tensor, operation)
        same(part, expected.view(size, 300)[rank])
        dist.reduce_scatter(part, list(tensor.chunk(size)), operation)
        same(part, expected.view(size, 300)[rank])
        same(tensor, everybody[rank])
    with pytest.raises(ValueError, match="PREMUL_SUM"):
        dist.all_reduce(torch.ones(2, dtype=torch.int32, device="neuron"), operation)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64], ids=str)
def test_sum_of_products_with_a_factor(world, dtype):
    world.run(check_premultiplied, dtype)


def check_coalesced(rank: int, size: int) -> None:
    everybody = [[values(r, n, torch.float32, seed=n) for n in (1, 300, 60_000)] for r in range(size)]
    of_tensor = list(zip(*everybody, strict=True))
    tensors = [tensor.to("neuron") for tensor in everybody[rank]]
    for operation, factor in ((dist.ReduceOp.SUM, 1.0), (dist.ReduceOp.PREMUL_SUM(0.5), 0.5)):
        reduced = [tensor.clone() for tensor in tensors]
        dist.all_reduce_coalesced(reduced, operation)
        for got, operands in zip(reduced, of_tensor, strict=True):
            same(got, factor * sum(operands))
    gathered = [[torch.empty_like(tensor) for tensor in tensors] for _ in range(size)]
    dist.all_gather_coalesced(gathered, tensors)
    for got, wanted in zip(gathered, everybody, strict=True):
        for one, other in zip(got, wanted, strict=True):
            same(one, other)

    # What a coalescing manager gathers up; its work is done when all of them are.
    wholes = [torch.empty(size * len(tensor), device="neuron") for tensor in tensors]
    with dist._coalescing_manager(device=torch.device("neuron"), async_ops=True) as manager:
        for whole, tensor in zip(wholes, tensors, strict=True):
            dist.all_gather_into_tensor(whole, tensor)
    manager.wait()
    for whole, operands in zip(wholes, of_tensor, strict=True):
        same(whole, torch.cat(operands))
    parts = [torch.empty_like(tensor) for tensor in tensors]
    with dist._coalescing_manager(device=torch.device("neuron")):
        for part, whole in zip(parts, wholes, strict=True):
            dist.reduce_scatter_tensor(part, whole)
    for part, operands in zip(parts, of_tensor, strict=True):
        same(part, size * operands[rank])
    with dist._coalescing_manager(device=torch.device("neuron")):
        for tensor in tensors:
            dist.all_reduce(tensor)
    for got, operands in zip(tensors, of_tensor, strict=True):
        same(got, sum(operands))


def test_coalesced_collectives(world):
    world.run(check_coalesced)


def check_functional(rank: int, size: int) -> None:
    from torch.distributed import _functional_collectives as functional

    group = dist.group.WORLD
    mine = values(rank, 8, torch.float32).to("neuron")
    everybody = [values(r, 8, torch.float32) for r in range(size)]
    same(functional.all_reduce(mine, "sum", group) + 0, sum(everybody))
    same(functional.all_gather_tensor(mine, 0, group) + 0, torch.cat(everybody))
    same(functional.reduce_scatter_tensor(mine, "sum", 0, group) + 0, sum(everybody).view(size, 2)[rank])
    same(functional.broadcast(mine, 1, group) + 0, everybody[1])
    taken = functional.all_to_all_single(mine, None, None, group) + 0
    same(taken, torch.cat([everybody[r].view(size, 2)[rank] for r in range(size)]))
    several = functional.all_reduce_coalesced([mine, mine * 2], "sum", group)
    same(several[1] + 0, 2 * sum(everybody))


def test_functional_collectives(world):
    world.run(check_functional)


def check_channels_last(rank: int, size: int) -> None:
    image = values(rank, 2 * 3 * 4 * 5, torch.float32).view(2, 3, 4, 5).to(memory_format=torch.channels_last)
    on_device = image.to("neuron")
    dist.all_reduce(on_device)
    same(on_device, sum(values(r, 120, torch.float32) for r in range(size)).view(2, 3, 4, 5))


def test_dense_tensors_of_another_order_are_reduced(world):
    world.run(check_channels_last)


def check_backends(rank: int, size: int, backends: dict[str, str]) -> None:
    for place, backend in backends.items():
        tensor = torch.full((3,), float(rank), device=place)
        dist.all_reduce(tensor)
        same(tensor, torch.full((3,), float(sum(range(size)))))
        assert dist.group.WORLD._get_backend(torch.device(place)).name() == backend


@pytest.mark.parametrize(
    ("backend", "backends"),
    [(None, {"neuron": "neuron"}), ("cpu:gloo,neuron:neuron", {"neuron": "neuron", "cpu": "gloo"})],
    ids=["that of the accelerator", "one for each device"],
)
def test_the_backend_of_a_device(backend, backends):
    two = World(2, backend)
    two.run(check_backends, backends)
    assert two.close() == [0, 0]
