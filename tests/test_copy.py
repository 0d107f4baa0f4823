# SPDX-License-Identifier: Apache-2.0
"""Copies between host and device, within a device, and between devices."""

import threading

import pytest
import torch

DTYPES = [
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
]

VIEWS = {
    "transposed": lambda t: t.transpose(0, 2),
    "narrowed": lambda t: t[:, 1:3],
    "strided": lambda t: t[..., ::2],
    "sparse window": lambda t: t[::3, 0, 0],
    "expanded": lambda t: t[:1, :1].expand(6, 4, 8),
    "flipped axes": lambda t: t.permute(2, 0, 1)[1:],
    "zero-dimensional": lambda t: t[1, 2, 3],
    "empty": lambda t: t[:, :0],
}


def sample(dtype=torch.float32):
    values = torch.arange(6 * 4 * 8).reshape(6, 4, 8)
    return (values % 2 == 0) if dtype == torch.bool else values.remainder(100).to(dtype)


def same(device_tensor, host_tensor):
    torch.testing.assert_close(device_tensor.cpu(), host_tensor, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", DTYPES)
def test_round_trip(dtype):
    host = sample(dtype)
    same(host.to("neuron"), host)


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS.keys())
def test_views_come_back_right(view):
    host = sample()
    device = host.to("neuron")
    same(view(device), view(host))


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS.keys())
def test_views_go_over_right(view):
    host = view(sample())
    same(host.to("neuron"), host)


@pytest.mark.parametrize(
    "view", [v for k, v in VIEWS.items() if k != "expanded"], ids=[k for k in VIEWS if k != "expanded"]
)
def test_host_into_a_view_changes_nothing_else(view):
    host, device = sample(), sample().to("neuron")
    source = torch.full(view(host).shape, -1.0)
    view(host).copy_(source)
    view(device).copy_(source)
    same(device, host)


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS.keys())
def test_clone_of_a_view(view):
    host = sample()
    same(view(host.to("neuron")).clone(), view(host).clone())


@pytest.mark.parametrize("to", [torch.float16, torch.int32, torch.float64, torch.bool, torch.complex64])
def test_conversion_both_ways(to):
    host = sample()
    same(torch.empty(host.shape, dtype=to, device="neuron").copy_(host), host.to(to))
    back = torch.empty(host.shape, dtype=to).copy_(host.to("neuron"))
    torch.testing.assert_close(back, host.to(to), rtol=0, atol=0)


def test_broadcasting():
    row = torch.arange(8.0)
    expected = torch.empty(6, 4, 8).copy_(row)
    same(torch.empty(6, 4, 8, device="neuron").copy_(row), expected)
    same(torch.empty(6, 4, 8, device="neuron").copy_(row.to("neuron")), expected)


def test_device_to_device_copy_is_a_copy():
    device = sample().to("neuron")
    other = device.clone()
    device.copy_(torch.zeros(()))
    same(other, sample())


@pytest.mark.skipif(torch.neuron.device_count() < 2, reason="needs two NeuronCores")
@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS.keys())
def test_between_cores(view):
    host = sample()
    other = view(host.to("neuron:0")).to("neuron:1")
    assert other.device.index == 1
    same(other, view(host))


def test_the_source_may_change_after_a_blocking_copy():
    host = torch.ones(1 << 20)
    device = host.to("neuron")
    host.zero_()
    same(device, torch.ones(1 << 20))
    small = torch.ones(4)
    device = small.to("neuron")
    small.zero_()
    same(device, torch.ones(4))


def test_pinned_memory_is_known():
    pinned = torch.arange(1000.0).pin_memory()
    assert pinned.is_pinned() and pinned[10:].is_pinned()
    assert pinned.data_ptr() % 64 == 0
    assert not torch.arange(1000.0).is_pinned()
    torch.testing.assert_close(pinned, torch.arange(1000.0))
    assert torch.empty(10, pin_memory=True).is_pinned()


def test_non_blocking_from_and_to_pinned_memory():
    pinned = torch.arange(1 << 18, dtype=torch.float32).pin_memory()
    device = pinned.to("neuron", non_blocking=True)
    back = torch.empty_like(pinned).pin_memory()
    back.copy_(device, non_blocking=True)
    torch.neuron.synchronize()
    torch.testing.assert_close(back, torch.arange(1 << 18, dtype=torch.float32), rtol=0, atol=0)


def test_non_blocking_outlives_its_tensors():
    device = [torch.full((1 << 16,), float(i)).pin_memory().to("neuron", non_blocking=True) for i in range(20)]
    for i, tensor in enumerate(device):
        same(tensor, torch.full((1 << 16,), float(i)))


def test_conjugate_and_negative_views():
    host = torch.complex(torch.arange(4.0), torch.arange(4.0) + 1)
    device = host.to("neuron")
    same(host.conj().to("neuron"), host.conj().resolve_conj())
    same(device.conj(), host.conj().resolve_conj())
    same(device.conj().imag, host.conj().imag.resolve_neg())


def test_item_and_tolist():
    device = sample(torch.int64).to("neuron")
    assert device[1, 2, 3].item() == sample()[1, 2, 3].item()
    assert device[0, 0].tolist() == sample(torch.int64)[0, 0].tolist()
    assert bool(torch.ones(1).to("neuron"))


def test_printing():
    text = repr(torch.arange(3.0).to("neuron"))
    assert text == "tensor([0., 1., 2.], device='neuron:0')"


def test_mismatched_shapes_are_refused():
    with pytest.raises(RuntimeError, match="expanded size"):
        torch.empty(3, device="neuron").copy_(torch.ones(4))


def test_overlapping_destination_is_refused():
    with pytest.raises(RuntimeError, match="single memory location"):
        torch.empty(1, device="neuron").expand(3).copy_(torch.ones(3))


def test_numpy_needs_a_copy():
    device = torch.arange(3.0).to("neuron")
    with pytest.raises(TypeError, match="cpu"):
        device.numpy()
    assert device.cpu().numpy().tolist() == [0.0, 1.0, 2.0]


def test_copies_from_several_threads():
    sources = [torch.full((257, 33), float(i)) for i in range(8)]
    results = [None] * 8

    def work(i):
        for _ in range(20):
            results[i] = sources[i].to("neuron")
            results[i] = results[i].cpu()

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for source, result in zip(sources, results, strict=True):
        torch.testing.assert_close(result, source, rtol=0, atol=0)
