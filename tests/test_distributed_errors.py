# SPDX-License-Identifier: Apache-2.0
"""The backend `neuron` of torch.distributed: what goes wrong is said by whom, where and why, and nothing hangs."""

from __future__ import annotations

import os
import re
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from distributed_world import World

SHORT = timedelta(seconds=3)


HOSTS = pytest.mark.parametrize("hosts", [1, 2], ids=["one host", "two hosts"])


@pytest.fixture(scope="module", params=[1, 2], ids=["one host", "two hosts"])
def world(request):
    two = World(2, hosts=request.param)
    yield two
    two.close()


def error_of(function, kind: type[Exception] = dist.DistBackendError) -> str:
    with pytest.raises(kind) as caught:
        function()
    return str(caught.value)


def check_wrong_arguments(rank: int, size: int) -> None:
    strided = torch.ones(4, 3, device="neuron")[:, :2]
    for call in (
        lambda: dist.all_reduce(strided),
        lambda: dist.all_gather_into_tensor(torch.empty(16, device="neuron"), strided),
        lambda: dist.send(strided, 1 - rank),
    ):
        assert "Tensors must be contiguous" in error_of(call, ValueError)
    assert "bitwise" in error_of(lambda: dist.all_reduce(torch.ones(2, device="neuron"), dist.ReduceOp.BOR), ValueError)
    assert "avg" in error_of(
        lambda: dist.all_reduce(torch.ones(2, dtype=torch.bool, device="neuron"), dist.ReduceOp.AVG), ValueError
    )
    wrong = torch.empty(5, device="neuron")
    assert "2 ranks" in error_of(lambda: dist.all_gather_into_tensor(wrong, torch.ones(2, device="neuron")), ValueError)
    assert "split sizes" in error_of(lambda: dist.all_to_all_single(wrong, wrong.clone(), [1, 1], [2, 3]), ValueError)
    # None of these reached the other rank: the group works.
    tensor = torch.ones(2, device="neuron")
    dist.all_reduce(tensor)
    assert tensor.tolist() == [2.0, 2.0]


def test_wrong_arguments(world):
    world.run(check_wrong_arguments)


def check_mismatch(rank: int, size: int, shapes: tuple, dtypes: tuple, call: str, words: list[str]) -> None:
    group = dist.new_group([0, 1], timeout=SHORT)
    tensor = torch.ones(shapes[rank], dtype=dtypes[rank], device="neuron")

    def mismatched():
        if call == "all_reduce":
            dist.all_reduce(tensor, group=group)
        elif call == "broadcast":
            dist.broadcast(tensor, 0, group=group)
        else:
            dist.all_gather_into_tensor(torch.empty(2 * len(tensor), device="neuron"), tensor, group=group)

    text = error_of(mismatched)
    for word in [f"rank {1 - rank}", call.removesuffix("_into_tensor"), *words]:
        assert word in text, text
    # The group is broken for good, and says why.
    assert "cannot be used any more" in error_of(lambda: dist.all_reduce(tensor, group=group))
    dist.barrier()


@pytest.mark.parametrize(
    ("shapes", "dtypes", "call", "words"),
    [
        (((2,), (3,)), (torch.float32, torch.float32), "all_reduce", ["[2]", "[3]"]),
        (((2,), (2,)), (torch.float32, torch.int32), "all_reduce", ["float32", "int32"]),
        (((2,), (3,)), (torch.float32, torch.float32), "broadcast", ["[2]", "[3]"]),
        (((2,), (3,)), (torch.float32, torch.float32), "all_gather_into_tensor", ["8", "12"]),
    ],
    ids=["shape", "dtype", "broadcast", "all_gather"],
)
def test_mismatch_between_ranks(world, shapes, dtypes, call, words):
    world.run(check_mismatch, shapes, dtypes, call, words)


def check_other_collective(rank: int, size: int) -> None:
    group = dist.new_group([0, 1], timeout=SHORT)
    tensor = torch.ones(2, device="neuron")
    if rank == 0:
        text = error_of(lambda: dist.all_reduce(tensor, group=group))
        assert "all_reduce #0" in text
        assert "barrier #0" in text or "rank 1 failed" in text
    else:
        error_of(lambda: dist.barrier(group=group))
    dist.barrier()


def test_another_collective_on_one_rank(world):
    world.run(check_other_collective)


def check_skipped(rank: int, size: int) -> None:
    group = dist.new_group([0, 1], timeout=SHORT)
    tensor = torch.ones(2, device="neuron")
    dist.all_reduce(tensor, group=group)
    if rank == 0:
        text = error_of(lambda: dist.all_reduce(tensor, group=group))
        for word in ("rank 0 in all_reduce #1", "timeout", "rank 1", "last collective of the group was all_reduce #0"):
            assert word in text, text
    dist.barrier()


def test_a_skipped_collective_times_out(world):
    world.run(check_skipped)


def check_message_without_partner(rank: int, size: int) -> None:
    group = dist.new_group([0, 1], timeout=SHORT)
    if rank == 0:
        text = error_of(lambda: dist.recv(torch.empty(2, device="neuron"), 1, group=group, tag=7))
        for word in ("rank 0 in recv (tag 7)", "timeout", "rank 1"):
            assert word in text, text
    dist.barrier()
    group = dist.new_group([0, 1], timeout=SHORT)
    if rank == 0:
        dist.send(torch.ones(3, device="neuron"), 1, group=group)
    else:
        text = error_of(lambda: dist.recv(torch.empty(2, device="neuron"), 0, group=group))
        assert "rank 0 sent 12 bytes" in text and "8 bytes" in text, text
    dist.barrier()


def test_messages_that_do_not_fit(world):
    world.run(check_message_without_partner)


def check_lifetime(rank: int, size: int) -> None:
    assert "twice" in error_of(lambda: dist.init_process_group("neuron"), ValueError)
    group = dist.new_group([0, 1], timeout=SHORT)
    backend = group._get_backend(torch.device("neuron"))
    dist.destroy_process_group(group)
    tensor = torch.ones(2, device="neuron")
    assert "was destroyed" in error_of(lambda: backend.allreduce([tensor]), RuntimeError)
    dist.barrier()
    # Destroyed by one rank only.
    group = dist.new_group([0, 1], timeout=SHORT)
    if rank == 1:
        dist.destroy_process_group(group)
    else:
        text = error_of(lambda: dist.all_reduce(tensor, group=group))
        assert "rank 1 has left" in text, text
    dist.barrier()


def test_double_init_and_use_after_destroy(world):
    world.run(check_lifetime)


def check_foreign_device(rank: int, size: int) -> None:
    own = torch.neuron.current_device()
    other = f"neuron:{1 - own}"
    factories = [
        lambda: torch.empty(2, device=other),
        lambda: torch.zeros(2, device=other),
        lambda: torch.ones(2, device=other),
        lambda: torch.full((2,), 3.0, device=other),
        lambda: torch.rand(2, device=other),
        lambda: torch.randn(2, device=other),
        lambda: torch.randint(0, 5, (2,), device=other),
        lambda: torch.arange(5, device=other),
        lambda: torch.linspace(0, 1, 5, device=other),
        lambda: torch.eye(3, device=other),
        lambda: torch.tensor([1.0], device=other),
        lambda: torch.empty_strided((2, 2), (1, 2), device=other),
        lambda: torch.ones(2, device="neuron").to(other),
        lambda: torch.ones(2).to(other),
        lambda: torch.zeros_like(torch.ones(2), device=other),
        lambda: torch.neuron.set_device(1 - own),
        lambda: torch.nn.Linear(2, 2).to(other),
    ]
    for factory in factories:
        text = error_of(factory, RuntimeError)
        assert f"its device is neuron:{own}" in text, text
    assert torch.neuron.current_device() == own
    assert torch.ones(2, device="neuron").device == torch.device("neuron", own)


@pytest.mark.parametrize("world", [1], indirect=True, ids=["one host"])
def test_a_device_of_another_rank(world):
    world.run(check_foreign_device)


def run_and_die(rank: int, size: int) -> str:
    dist.barrier()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    tensor = torch.ones(2, device="neuron")
    return error_of(lambda: dist.all_reduce(tensor))


@pytest.mark.parametrize("hosts", [1, 3], ids=["one host", "three hosts"])
def test_a_rank_that_dies(hosts):
    world = World(3, hosts=hosts)
    world.start(run_and_die)
    texts = world.results(count=2)
    assert set(texts) == {0, 2}
    # Whoever notices first, before anything times out; the other hears of it.
    assert any(re.search(r"rank 1 \(process \d+( on .+)?\) died", text) for text in texts.values()), texts
    assert all("rank 1" in text for text in texts.values()), texts
    assert world.close() == [0, -signal.SIGKILL, 0]


def wait_for_the_other(rank: int, size: int, handler: bool) -> str | None:
    class Stopped(Exception):
        pass

    def stop(*_: object) -> None:
        raise Stopped

    dist.barrier()
    if rank == 1:
        if handler:
            signal.signal(signal.SIGTERM, stop)
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGTERM)).start()
        tensor = torch.ones(2, device="neuron")
        with pytest.raises(Stopped):
            dist.all_reduce(tensor)
        return None
    # Waits for the signal's consequence, not for a time.
    return error_of(lambda: dist.recv(torch.empty(1, device="neuron"), 1))


@pytest.mark.parametrize(("handler", "hosts"), [(True, 1), (False, 1), (True, 2)])
def test_sigterm_in_a_collective(handler, hosts):
    world = World(2, hosts=hosts)
    world.start(wait_for_the_other, handler)
    texts = world.results(count=2 if handler else 1)
    assert "rank 1" in texts[0]
    assert ("failed" if handler else "died") in texts[0], texts[0]
    assert world.close() == [0, 0 if handler else -signal.SIGTERM]


# How rank 0 ends, and how rank 1 does.
ENDS = [
    ("", "dist.group.WORLD.abort()"),
    ("work = dist.all_reduce(x, async_op=True)", "work = dist.irecv(x, 0)"),
    (
        "import atexit; atexit.register(dist.destroy_process_group)",
        "keep = dist.group.WORLD, dist.isend(x, 0); dist.destroy_process_group()",
    ),
]


@HOSTS
def test_the_end_of_a_process(run_python, tmp_path, hosts):
    """In any order with the end of the interpreter: no hang, no crash."""
    program = """
        import torch, torch.distributed as dist
        dist.init_process_group("neuron", init_method="file://{store}", rank={rank}, world_size=2)
        x = torch.ones(3, device="neuron")
        dist.all_reduce(x)
        assert x.tolist() == [2, 2, 2]
        {end}
        """

    def run(i: int, rank: int):
        text = program.format(store=tmp_path / str(i), rank=rank, end=ENDS[i][rank])
        return run_python(text, check=False, LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE="2", GROUP_RANK=str(rank % hosts))

    with ThreadPoolExecutor(2) as pool:
        keys = [(i, rank) for i in range(len(ENDS)) for rank in range(2)]
        for key, result in zip(keys, pool.map(lambda key: run(*key), keys), strict=True):
            assert result.returncode == 0, (key, result.stderr)


def test_more_ranks_than_cores(run_python, tmp_path):
    result = run_python(
        f"""
        import torch.distributed as dist
        try:
            dist.init_process_group("neuron", init_method="file://{tmp_path}/store", rank=2, world_size=3)
        except RuntimeError as error:
            print(error)
        """,
        LOCAL_RANK="2",
        LOCAL_WORLD_SIZE="3",
        TORCH_NEURONX_SOFTWARE_CORES="2",
        TORCH_NEURONX_RUNTIME="software",
    )
    assert "Local rank 2 of 3 has no NeuronCore" in result.stdout
    assert "--nproc_per_node=2" in result.stdout


def test_ranks_share_the_processors(run_python):
    result = run_python(
        """
        import ctypes, torch
        torch.neuron.init()
        # os.environ holds what was there at the start.
        getenv = ctypes.CDLL(None).getenv
        getenv.restype = ctypes.c_char_p
        print(getenv(b"NPROC").decode(), torch.get_num_threads())
        """,
        LOCAL_RANK="0",
        LOCAL_WORLD_SIZE="64",
        NPROC=None,
        OMP_NUM_THREADS=None,
        TORCH_NEURONX_RUNTIME="software",
    )
    share = str(max(1, len(os.sched_getaffinity(0)) // 64))
    assert result.stdout.split() == [share, share]
