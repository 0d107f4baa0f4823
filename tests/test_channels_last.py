# SPDX-License-Identifier: Apache-2.0
"""Graphs of convolutions: the order in which images lie between them is the program's own affair."""

from __future__ import annotations

import copy

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.testing import assert_close

from torch_neuronx.lowering.families.convolution import gains_from_channels_last

F = torch.nn.functional
KERNELS = frozenset({"neuron.convolution"})


pytestmark = pytest.mark.usefixtures("fresh_dynamo")


class Block(torch.nn.Module):
    """What image models are made of, large enough for the host kernels."""

    def __init__(self):
        super().__init__()
        self.first = torch.nn.Conv2d(4, 32, 3, padding=1)
        self.norm = torch.nn.GroupNorm(8, 32)
        self.second = torch.nn.Conv2d(32, 32, 3, padding=1, groups=2)
        self.batch_norm = torch.nn.BatchNorm2d(32)
        self.down = torch.nn.Conv2d(32, 64, 3, stride=2, padding=1, bias=False)
        self.up = torch.nn.ConvTranspose2d(64, 32, 2, stride=2)
        self.scale = torch.nn.Parameter(torch.randn(32, 1, 1))
        self.last = torch.nn.Conv2d(64, 3, 3, padding=1)

    def forward(self, x):
        x = self.first(x)
        shortcut = x
        x = self.second(F.silu(self.norm(x))) * 0.5 + shortcut
        x = torch.relu(self.batch_norm(x)) * self.scale
        y = F.interpolate(self.up(self.down(x)), scale_factor=2.0)
        y = F.max_pool2d(y, 2)
        x = torch.cat([torch.where(x > 0, x, y), y.to(torch.float32).to(x.dtype)], 1)
        return self.last(x), x.mean((2, 3)), x[:, :2].contiguous(), shortcut


@pytest.mark.parametrize("order", (torch.contiguous_format, torch.channels_last))
@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16))
def test_results(dtype, order):
    model = Block().to(dtype).eval()
    x = torch.randn(2, 4, 64, 48).to(dtype)
    with torch.no_grad():
        expected = model(x)
        device_model = copy.deepcopy(model).to("neuron", memory_format=order)
        function = torch.compile(device_model, backend="neuron", fullgraph=True, dynamic=False)
        actual = function(x.to("neuron", memory_format=order))
    tolerances = {"rtol": 5e-2, "atol": 5e-2} if dtype == torch.bfloat16 else {"rtol": 1e-4, "atol": 1e-4}
    for got, want in zip(actual, expected, strict=True):
        if order == torch.contiguous_format:
            assert got.stride() == want.stride()
        assert_close(got.cpu(), want, check_stride=False, **tolerances)


def test_gradients():
    model = Block()
    x = torch.randn(2, 4, 64, 48)
    device_model = copy.deepcopy(model).to("neuron")
    model(x)[0].square().sum().backward()
    function = torch.compile(device_model, backend="neuron", fullgraph=True, dynamic=False)
    function(x.to("neuron"))[0].square().sum().backward()
    for got, want in zip(device_model.parameters(), model.parameters(), strict=True):
        assert_close(got.grad.cpu(), want.grad, rtol=1e-3, atol=1e-3 * float(want.grad.abs().max()) + 1e-4)


def chain(length: int, dtype=torch.float32, channels: int = 64):
    weights = [torch.randn(channels, channels, 3, 3, dtype=dtype) for _ in range(length)]

    def function(x, *weights):
        for weight in weights:
            x = torch.relu(F.conv2d(x, weight, padding=1))
        return x

    return function, (torch.randn(1, channels, 32, 32, dtype=dtype), *weights)


def gains(function, arguments, kernels=KERNELS) -> bool:
    return gains_from_channels_last(make_fx(function, tracing_mode="fake")(*arguments).graph, kernels)


def test_several_convolutions_gain():
    assert gains(*chain(4))


def test_one_convolution_does_not():
    assert not gains(*chain(1))


def test_an_image_that_lies_so_gains_even_for_one():
    function, (x, weight) = chain(1)
    assert gains(lambda x, w: function(x, w).mean((2, 3)), (x.contiguous(memory_format=torch.channels_last), weight))


def test_saved_activations_would_be_reordered():
    function, (x, *weights) = chain(4)

    def saves(x, *weights):
        results = [x]
        for weight in weights:
            results.append(function(results[-1], weight))
        return results

    assert not gains(saves, (x, *weights))


def test_without_kernel_nothing_gains():
    assert not gains(*chain(4), kernels=frozenset())
    assert not gains(*chain(4, torch.bfloat16))
    assert not gains(*chain(4, channels=2))
