# SPDX-License-Identifier: Apache-2.0
"""Saving and loading tensors of the device."""

import io
import pickle

import pytest
import torch


def same(device_tensor, host_tensor):
    torch.testing.assert_close(device_tensor.cpu(), host_tensor, rtol=0, atol=0)


def saved(value, **options):
    buffer = io.BytesIO()
    torch.save(value, buffer, **options)
    buffer.seek(0)
    return buffer


@pytest.mark.parametrize("zip_format", [True, False])
def test_save_and_load(zip_format):
    device = torch.arange(6.0).view(2, 3).to("neuron")
    loaded = torch.load(saved(device, _use_new_zipfile_serialization=zip_format))
    assert loaded.device == device.device
    same(loaded, torch.arange(6.0).view(2, 3))


def test_shared_memory_stays_shared():
    base = torch.arange(6.0).to("neuron")
    loaded = torch.load(saved({"base": base, "view": base[2:]}))
    loaded["base"].copy_(torch.zeros(6))
    same(loaded["view"], torch.zeros(4))


def test_map_location():
    device = torch.arange(3.0).to("neuron")
    assert torch.load(saved(device), map_location="cpu").device.type == "cpu"
    loaded = torch.load(saved(torch.arange(3.0)), map_location="neuron")
    assert loaded.device.type == "neuron"
    same(loaded, torch.arange(3.0))
    same(torch.load(saved(torch.arange(3.0)), map_location=torch.device("neuron:0")), torch.arange(3.0))


def test_loading_for_a_device_that_does_not_exist_is_refused():
    with pytest.raises(RuntimeError, match="neuron"):
        torch.load(saved(torch.arange(3.0)), map_location=f"neuron:{torch.neuron.device_count()}")


def test_pickle():
    device = torch.arange(3.0).to("neuron")
    loaded = pickle.loads(pickle.dumps(device))
    assert loaded.device == device.device
    same(loaded, torch.arange(3.0))


def test_module_and_optimizer_state():
    model = torch.nn.Linear(3, 2).to("neuron")
    loaded = torch.load(saved(model.state_dict()))
    other = torch.nn.Linear(3, 2).to("neuron")
    other.load_state_dict(loaded)
    for name, value in model.state_dict().items():
        same(other.state_dict()[name], value.cpu())


def test_safetensors(tmp_path):
    safetensors = pytest.importorskip("safetensors.torch", reason="safetensors is not installed")
    path = tmp_path / "weights.safetensors"
    device = torch.arange(6, dtype=torch.bfloat16).view(2, 3).to("neuron")
    safetensors.save_file({"weight": device}, path)
    loaded = safetensors.load_file(path)["weight"]
    torch.testing.assert_close(loaded, device.cpu(), rtol=0, atol=0)


def test_save_waits_for_the_device():
    pinned = torch.arange(1 << 18, dtype=torch.float32).pin_memory()
    loaded = torch.load(saved(pinned.to("neuron", non_blocking=True)), map_location="cpu")
    torch.testing.assert_close(loaded, torch.arange(1 << 18, dtype=torch.float32), rtol=0, atol=0)
