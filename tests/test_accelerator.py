# SPDX-License-Identifier: Apache-2.0
"""torch.accelerator and other generic code reach the device."""

import pytest
import torch


def test_current_accelerator():
    assert torch.accelerator.current_accelerator() == torch.device("neuron")
    assert torch._C._get_accelerator() == torch.device("neuron")
    assert torch.accelerator.is_available()
    assert torch.accelerator.device_count() == torch.neuron.device_count()
    assert torch.get_device_module("neuron") is torch.neuron


def test_device_index():
    before = torch.accelerator.current_device_index()
    last = torch.accelerator.device_count() - 1
    torch.accelerator.set_device_index(last)
    assert torch.neuron.current_device() == last
    torch.accelerator.set_device_index(before)
    with torch.accelerator.device_index(last):
        assert torch.neuron.current_device() == last
    assert torch.neuron.current_device() == before


def test_streams():
    stream = torch.Stream("neuron")
    torch.accelerator.set_stream(stream)
    try:
        assert torch.accelerator.current_stream() == stream
    finally:
        torch.accelerator.set_stream(torch.neuron.default_stream())
    torch.accelerator.synchronize()
    assert stream.query()


def test_memory():
    torch.accelerator.reset_peak_memory_stats()
    before = torch.accelerator.memory_allocated()
    x = torch.empty(1 << 20, dtype=torch.uint8, device="neuron")
    assert torch.accelerator.memory_allocated() == before + x.numel()
    assert torch.accelerator.max_memory_allocated() >= before + x.numel()
    assert torch.accelerator.memory_reserved() >= torch.accelerator.memory_allocated()
    free, total = torch.accelerator.get_memory_info()
    assert 0 < free < total
    del x
    torch.accelerator.empty_cache()
    assert torch.accelerator.memory_allocated() == before


def test_empty_host_cache():
    del_me = torch.ones(1 << 20).pin_memory()
    assert del_me.is_pinned()
    del del_me
    torch.accelerator.empty_host_cache()
    assert torch.ones(4).pin_memory().is_pinned()


def test_device_capability():
    assert torch.bfloat16 in torch.accelerator.get_device_capability()["supported_dtypes"]


def test_default_device():
    with torch.device("neuron"):
        assert torch.empty(2).device.type == "neuron"


def test_autocast_runs_matmul_in_bfloat16_and_softmax_in_float32():
    a, b = torch.randn(4, 8).to("neuron"), torch.randn(8, 3).to("neuron")
    with torch.autocast("neuron"):
        product = a @ b
        probabilities = torch.softmax(product, -1)
    assert product.dtype == torch.bfloat16 and probabilities.dtype == torch.float32
    with torch.autocast("neuron", dtype=torch.float16):
        assert (a @ b).dtype == torch.float16
    with torch.neuron.amp.autocast(enabled=False):
        assert (a @ b).dtype == torch.float32
    torch.testing.assert_close(product.cpu().float(), a.cpu() @ b.cpu(), rtol=0.05, atol=0.05)


def test_autocast_refuses_binary_cross_entropy():
    p, t = torch.rand(4).to("neuron"), torch.ones(4).to("neuron")
    with torch.autocast("neuron"), pytest.raises(RuntimeError, match="unsafe to autocast"):
        torch.nn.functional.binary_cross_entropy(p, t)


def test_data_loader_pins_memory():
    loader = torch.utils.data.DataLoader(torch.arange(8.0), batch_size=4, pin_memory=True)
    batches = list(loader)
    assert all(batch.is_pinned() for batch in batches)
    torch.testing.assert_close(torch.cat(batches), torch.arange(8.0))
