# SPDX-License-Identifier: Apache-2.0
"""Convolutions of one to three dimensions, transposed ones, gradients, and the host kernels for large ones."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
from case import FLOATS, Case, check, parametrize, sample

import torch_neuronx

aten = torch.ops.aten


class Setting(NamedTuple):
    stride: int = 1
    padding: int = 0
    dilation: int = 1
    transposed: bool = False
    output_padding: int = 0
    groups: int = 1

    def arguments(self, rank: int) -> tuple:
        lists = [[n] * rank for n in (self.stride, self.padding, self.dilation)]
        return (*lists, self.transposed, [self.output_padding] * rank, self.groups)


SETTINGS = {
    "plain": Setting(),
    "strided": Setting(2, 1),
    "dilated": Setting(2, 1, 2, groups=2),
    "depthwise": Setting(1, 2, groups=4),
    "transposed": Setting(2, 1, transposed=True, output_padding=1),
    "transposed-dilated": Setting(3, 0, 2, transposed=True, output_padding=2, groups=2),
    "transposed-depthwise": Setting(1, 2, transposed=True, groups=4),
    "transposed-cut": Setting(2, 2, transposed=True),
}


def operands(setting: Setting, rank: int, dtype, bias: bool = True, size=(7, 6, 5), channels=(4, 8)) -> list:
    inner, outer = channels
    x = sample(2, inner, *size[:rank], dtype=dtype)
    ends = (inner, outer // setting.groups) if setting.transposed else (outer, inner // setting.groups)
    weight = sample(*ends, *(3, 2, 3)[:rank], dtype=dtype, seed=1, low=-1, high=1)
    return [x, weight, sample(outer, dtype=dtype, seed=2) if bias else None]


def case(name: str, rank: int, dtypes, bias: bool = True, **options) -> Case:
    setting = SETTINGS[name]

    def make(dtype):
        return (*operands(setting, rank, dtype, bias), *setting.arguments(rank)), {}

    tolerances = {"rtol": 1e-4, "atol": 1e-4} if dtypes[0] == torch.float32 else {"rtol": 2e-2, "atol": 5e-2}
    options = {"layouts": (), "mutable": False, "strides": False, **tolerances, **options}
    return Case(aten.convolution.default, make, dtypes, f"{rank}d-{name}-{'bias' if bias else 'no-bias'}", **options)


CASES = [
    *(case(name, rank, FLOATS[:2], bias=rank != 2) for name in SETTINGS for rank in (1, 2, 3)),
    *(case(name, 2, FLOATS[2:]) for name in ("plain", "dilated", "transposed")),
    case("strided", 2, (torch.float32,), layouts=("transposed", "sliced", "offset", "expanded"), mutable=True),
]


@parametrize(CASES)
def test_convolution(case, dtype, variant):
    check(case, dtype, variant)


def gradients(tensors, setting: Setting, grad, device: str, dtype=None) -> list[torch.Tensor]:
    leaves = [None if t is None else t.to(device, dtype, copy=True).requires_grad_() for t in tensors]
    y = aten.convolution(*leaves, *setting.arguments(grad.ndim - 2))
    y.backward(grad.to(device, dtype))
    return [y.detach().cpu(), *(leaf.grad.cpu() for leaf in leaves if leaf is not None)]


def compare_gradients(tensors, setting: Setting, dtype, **tolerances) -> None:
    shape = aten.convolution(
        *(None if t is None else t.float() for t in tensors), *setting.arguments(tensors[0].ndim - 2)
    )
    grad = sample(*shape.shape, dtype=dtype, seed=3, low=-1, high=1)
    expected = gradients(tensors, setting, grad, "cpu", torch.float64)
    torch_neuronx.clear_op_tracking()
    actual = gradients(tensors, setting, grad, "neuron")
    for got, want in zip(actual, expected, strict=True):
        assert got.dtype == dtype
        torch.testing.assert_close(got, want.to(dtype), **tolerances)
    assert torch_neuronx.get_fallback_ops() == []


@pytest.mark.parametrize("rank", (1, 2, 3))
@pytest.mark.parametrize("name", SETTINGS)
def test_gradients(name, rank):
    tensors = operands(SETTINGS[name], rank, torch.float32)
    compare_gradients(tensors, SETTINGS[name], torch.float32, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16))
@pytest.mark.parametrize("name", ("strided", "depthwise", "transposed"))
def test_large(name, dtype):
    """Large enough for the host kernels."""
    tensors = operands(SETTINGS[name], 2, dtype, size=(56, 48), channels=(32, 64))
    half = {"rtol": 2e-2, "atol": 0.5}
    tolerances = half if dtype == torch.bfloat16 else {"rtol": 1e-3, "atol": 1e-3}
    compare_gradients(tensors, SETTINGS[name], dtype, **tolerances)


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16))
@pytest.mark.parametrize("rank", (2, 3))
@pytest.mark.parametrize("name", SETTINGS)
def test_channels_last(name, rank, dtype):
    """In a graph the host kernel takes images with their channels last, and weights in either order."""
    size = (56, 48) if rank == 2 else (10, 16, 12)
    x, weight, bias = operands(SETTINGS[name], rank, dtype, size=size, channels=(32, 64))
    order = torch.channels_last if rank == 2 else torch.channels_last_3d

    def function(x, weight, other, bias):
        arguments = SETTINGS[name].arguments(rank)
        return aten.convolution(x, weight, bias, *arguments) + aten.convolution(x * 0.5, other, None, *arguments)

    x, other = x.contiguous(memory_format=order), weight.flip(0).contiguous(memory_format=order)
    expected = function(*(v.float() for v in (x, weight, other, bias)))
    torch._dynamo.reset()
    compiled = torch.compile(function, backend="neuron", fullgraph=True, dynamic=False)
    actual = compiled(*(v.to("neuron") for v in (x, weight, other, bias)))
    tolerances = {"rtol": 2e-2, "atol": 0.5} if dtype == torch.bfloat16 else {"rtol": 1e-3, "atol": 1e-3}
    torch.testing.assert_close(actual.cpu(), expected.to(dtype), check_stride=False, **tolerances)


def test_only_the_gradients_asked_for():
    x, weight, bias = operands(SETTINGS["plain"], 2, torch.float32)
    y = torch.nn.functional.conv2d(x.to("neuron"), weight.to("neuron").requires_grad_(), bias.to("neuron"))
    leaf = weight.clone().requires_grad_()
    (expected,) = torch.autograd.grad(torch.nn.functional.conv2d(x, leaf, bias).sum(), leaf)
    assert y.requires_grad
    device_leaf = weight.to("neuron").requires_grad_()
    result = torch.nn.functional.conv2d(x.to("neuron"), device_leaf, bias.to("neuron")).sum()
    (actual,) = torch.autograd.grad(result, device_leaf)
    torch.testing.assert_close(actual.cpu(), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("padding", ("same", "valid"))
def test_named_padding(padding):
    x, weight, bias = operands(SETTINGS["plain"], 2, torch.float32)
    expected = torch.nn.functional.conv2d(x, weight, bias, padding=padding)
    actual = torch.nn.functional.conv2d(x.to("neuron"), weight.to("neuron"), bias.to("neuron"), padding=padding)
    torch.testing.assert_close(actual.cpu(), expected, rtol=1e-4, atol=1e-4)


def test_one_image_without_batch():
    x, weight, _ = operands(SETTINGS["plain"], 2, torch.float32)
    actual = torch.nn.functional.conv2d(x[0].to("neuron"), weight.to("neuron"))
    torch.testing.assert_close(actual.cpu(), torch.nn.functional.conv2d(x[0], weight), rtol=1e-4, atol=1e-4)


def test_no_images():
    weight = torch.zeros(8, 4, 3, 3).to("neuron").requires_grad_()
    y = torch.nn.functional.conv2d(torch.zeros(0, 4, 5, 5).to("neuron"), weight)
    assert y.shape == (0, 8, 3, 3)
    y.sum().backward()
    assert torch.equal(weight.grad.cpu(), torch.zeros(8, 4, 3, 3))
