# SPDX-License-Identifier: Apache-2.0
"""Storages: views share them, set_ and resize_ change them, their memory is opaque."""

import copy

import pytest
import torch
from torch.utils.dlpack import from_dlpack, to_dlpack


def same(device_tensor, host_tensor):
    torch.testing.assert_close(device_tensor.cpu(), host_tensor, rtol=0, atol=0)


def test_views_share_memory():
    base = torch.arange(12.0).to("neuron")
    view = base.view(3, 4)[1:]
    assert view.untyped_storage()._cdata == base.untyped_storage()._cdata
    view.copy_(torch.zeros(2, 4))
    same(base, torch.cat([torch.arange(4.0), torch.zeros(8)]))


@pytest.mark.parametrize(
    "view",
    [
        lambda t: t.view(6, 4),
        lambda t: t.reshape(4, 6),
        lambda t: t.t().reshape(24),
        lambda t: t.as_strided((3, 2), (4, 1), 5),
        lambda t: t.unfold(1, 3, 2),
        lambda t: t.view(torch.int32),
        lambda t: t.unsqueeze(1).expand(2, 3, 12),
        lambda t: t.flatten().unflatten(0, (2, -1)),
        lambda t: t.diagonal(),
        lambda t: t.select(1, 3),
    ],
)
def test_view_operators(view):
    host = torch.arange(24.0).view(2, 12)
    expected = view(host)
    actual = view(host.to("neuron"))
    assert actual.shape == expected.shape
    same(actual, expected)


def test_complex_views():
    host = torch.complex(torch.arange(4.0), -torch.arange(4.0))
    device = host.to("neuron")
    same(torch.view_as_real(device), torch.view_as_real(host))
    same(torch.view_as_complex(torch.view_as_real(device)), host)


def test_resize_keeps_the_content():
    device = torch.arange(6.0).to("neuron")
    device.resize_(2, 2)
    same(device, torch.arange(4.0).view(2, 2))
    device.resize_(3, 4)
    assert device.shape == (3, 4)
    same(device.view(-1)[:6], torch.arange(6.0))


def test_resize_takes_a_memory_format():
    device = torch.empty(0, device="neuron").resize_(2, 3, 4, 5, memory_format=torch.channels_last)
    assert device.is_contiguous(memory_format=torch.channels_last)


def test_storage_resize():
    device = torch.arange(8.0).to("neuron")
    storage = device.untyped_storage()
    storage.resize_(64)
    assert storage.nbytes() == 64
    same(device, torch.arange(8.0))
    storage.resize_(0)
    assert storage.nbytes() == 0


def test_set_():
    a, b = torch.arange(4.0).to("neuron"), torch.arange(10.0, 16.0).to("neuron")
    a.set_(b)
    assert a.is_set_to(b)
    a.set_(b.untyped_storage(), 2, (2, 2), (2, 1))
    same(a, torch.tensor([[12.0, 13.0], [14.0, 15.0]]))
    a.set_(b.untyped_storage())
    same(a, torch.arange(10.0, 16.0))
    a.set_()
    assert a.numel() == 0 and a.device.type == "neuron"
    same(b, torch.arange(10.0, 16.0))


def test_set_refuses_memory_of_the_host():
    with pytest.raises(RuntimeError, match="device"):
        torch.empty(2, device="neuron").set_(torch.empty(2).untyped_storage())


def test_data_assignment():
    parameter = torch.nn.Parameter(torch.zeros(3).to("neuron"))
    parameter.data = torch.arange(5.0).to("neuron")
    assert parameter.requires_grad and parameter.shape == (5,)
    same(parameter.detach(), torch.arange(5.0))


def test_storage_copies():
    device = torch.arange(4.0).to("neuron")
    assert device.untyped_storage().cpu().nbytes() == 16
    assert device.untyped_storage().clone().device.type == "neuron"
    assert torch.arange(4.0).untyped_storage().neuron().device.type == "neuron"


def test_deepcopy():
    device = torch.arange(4.0).to("neuron")
    copied = copy.deepcopy(device)
    device.copy_(torch.zeros(4))
    same(copied, torch.arange(4.0))


def test_module_moves_as_a_whole():
    module = torch.nn.Linear(3, 2)
    moved = copy.deepcopy(module).to("neuron")
    assert {p.device.type for p in moved.parameters()} == {"neuron"}
    for name, value in module.state_dict().items():
        same(moved.state_dict()[name], value)
    assert {p.device.type for p in copy.deepcopy(module).neuron().parameters()} == {"neuron"}


def test_parameters_keep_their_identity():
    """Shared weights stay shared when a module moves, and an optimizer made before still holds them."""
    first, second = torch.nn.Linear(3, 3, bias=False), torch.nn.Linear(3, 3, bias=False)
    second.weight = first.weight
    weight, value = first.weight, first.weight.detach().clone()
    weight.grad = torch.ones(3, 3)
    model = torch.nn.Sequential(first, second)
    for device in ("neuron", "cpu"):
        model.to(device)
        assert first.weight is weight and second.weight is weight
        assert weight.device.type == device and weight.grad.device.type == device
        assert weight.detach().cpu().equal(value)


def test_empty_tensors_have_no_memory():
    before = torch.neuron.memory_allocated()
    device = torch.empty(0, 5, device="neuron")
    assert torch.neuron.memory_allocated() == before
    assert device.untyped_storage().nbytes() == 0
    same(device, torch.empty(0, 5))


def test_dlpack_shares_memory():
    device = torch.arange(4.0).to("neuron")
    shared = from_dlpack(to_dlpack(device))
    assert shared.device == device.device
    same(shared, torch.arange(4.0))
    device.copy_(torch.ones(4))
    same(shared, torch.ones(4))


def test_dlpack_refuses_a_view_with_an_offset():
    device = torch.arange(4.0).to("neuron")
    shared = from_dlpack(to_dlpack(device[1:]))
    with pytest.raises(RuntimeError, match="clone"):
        shared.cpu()
