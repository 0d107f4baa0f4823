# SPDX-License-Identifier: Apache-2.0
"""The caching allocator: reuse, rounding, statistics, and what happens when memory runs out."""

import gc

import pytest
import torch

import torch_neuronx

MIB = 1 << 20


@pytest.fixture(autouse=True)
def clean():
    gc.collect()
    torch.neuron.synchronize()
    torch.neuron.empty_cache()
    torch.neuron.init()
    yield
    torch.neuron.empty_cache()


def allocated():
    return torch.neuron.memory_allocated()


def test_allocating_and_freeing_counts():
    before = allocated()
    x = torch.empty(MIB, dtype=torch.uint8, device="neuron")
    assert allocated() == before + MIB
    del x
    assert allocated() == before


def test_a_freed_block_is_reused():
    x = torch.empty(3 * MIB, dtype=torch.uint8, device="neuron")
    reserved = torch.neuron.memory_reserved()
    del x
    y = torch.empty(3 * MIB - 10, dtype=torch.uint8, device="neuron")
    assert torch.neuron.memory_reserved() == reserved
    assert y.numel() == 3 * MIB - 10


def test_empty_cache_gives_memory_back():
    x = torch.empty(8 * MIB, dtype=torch.uint8, device="neuron")
    free_before, _ = torch.neuron.mem_get_info()
    del x
    assert torch.neuron.memory_reserved() >= 8 * MIB
    torch.neuron.empty_cache()
    assert torch.neuron.memory_reserved() == allocated()
    assert torch.neuron.mem_get_info()[0] >= free_before


@pytest.mark.parametrize("size", [1, 255, 256, 257, 1000, 4097, 100_000, MIB - 1, MIB, 5 * MIB + 1, 16 * MIB - 1])
def test_small_requests_are_rounded_by_an_eighth_at_most(size):
    before = allocated()
    x = torch.empty(size, dtype=torch.uint8, device="neuron")
    rounded = allocated() - before
    assert x.numel() == size
    assert rounded >= size and rounded % 64 == 0
    assert rounded == 256 if size <= 256 else rounded <= size * 1.125 + 64


def test_large_requests_are_nearly_exact():
    before = allocated()
    x = torch.empty(16 * MIB + 1, dtype=torch.uint8, device="neuron")
    assert allocated() - before == 16 * MIB + 65536
    del x


def test_peak():
    torch.neuron.reset_peak_memory_stats()
    before = allocated()
    x = torch.empty(2 * MIB, dtype=torch.uint8, device="neuron")
    del x
    assert allocated() == before
    assert torch.neuron.max_memory_allocated() == before + 2 * MIB
    torch.neuron.reset_peak_memory_stats()
    assert torch.neuron.max_memory_allocated() == before


def test_statistics():
    torch.neuron.reset_accumulated_memory_stats()
    before = torch.neuron.memory_stats()
    x = torch.empty(2 * MIB, dtype=torch.uint8, device="neuron")
    y = torch.empty(1024, dtype=torch.uint8, device="neuron")
    stats = torch.neuron.memory_stats()
    for name in ("allocated_bytes", "reserved_bytes", "active_bytes"):
        assert set(stats[name]) == {"current", "peak", "allocated", "freed"}
    assert stats["allocation_requests"] - before["allocation_requests"] == 2
    assert stats["allocated_bytes"]["allocated"] == 2 * MIB + 1024
    assert stats["allocated_bytes.large_pool.allocated"] == 2 * MIB
    assert stats["allocated_bytes.small_pool.allocated"] == 1024
    del x, y
    stats = torch.neuron.memory_stats()
    assert stats["num_tensor_frees"] - before["num_tensor_frees"] == 2
    assert stats["allocated_bytes"]["freed"] == 2 * MIB + 1024
    assert stats["num_ooms"] == 0


def test_memory_is_that_of_one_device():
    if torch.neuron.device_count() < 2:
        pytest.skip("needs two NeuronCores")
    before = [torch.neuron.memory_allocated(i) for i in range(2)]
    x = torch.empty(MIB, dtype=torch.uint8, device="neuron:1")
    assert [torch.neuron.memory_allocated(i) - before[i] for i in range(2)] == [0, x.numel()]


def test_the_package_offers_the_same_functions():
    assert torch_neuronx.memory_allocated() == allocated()
    assert torch_neuronx.memory_stats is torch.neuron.memory.memory_stats


def test_summary_names_tensors():
    x = torch.empty(3 * MIB, dtype=torch.uint8, device="neuron")
    text = torch.neuron.memory_summary()
    assert "allocated_bytes" in text and "3.00 MiB" in text
    assert "3.00 MiB" not in torch.neuron.memory_summary(abbreviated=True)
    del x


def test_out_of_memory_names_the_largest_tensors_and_the_process_goes_on():
    kept = torch.empty(5 * MIB, dtype=torch.uint8, device="neuron")
    _, total = torch.neuron.mem_get_info()
    ooms = torch.neuron.memory_stats()["num_ooms"]
    with pytest.raises(torch.OutOfMemoryError, match=r"5\.00 MiB by") as error:
        torch.empty(2 * total, dtype=torch.uint8, device="neuron")
    assert "neuron:" in str(error.value) and "smaller" in str(error.value)
    assert torch.neuron.memory_stats()["num_ooms"] == ooms + 1
    torch.testing.assert_close(torch.ones(3).to("neuron").cpu(), torch.ones(3))
    assert kept.numel() == 5 * MIB


def test_cached_blocks_are_given_up_before_memory_runs_out(run_python):
    run_python(
        """
        import torch
        mib = 1 << 20
        a = torch.empty(40 * mib, dtype=torch.uint8, device="neuron")
        del a                                   # cached, of a size that nothing else asks for
        b = torch.empty(50 * mib, dtype=torch.uint8, device="neuron")
        stats = torch.neuron.memory_stats()
        assert stats["num_alloc_retries"] == 1 and stats["num_ooms"] == 0
        free, total = torch.neuron.mem_get_info()
        assert total == 64 * mib and free == 14 * mib
        """,
        NEURONCORE_MEMORY_BYTES=str(64 * MIB),
        TORCH_NEURONX_RUNTIME="software",
    )
