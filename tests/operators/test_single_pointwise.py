# SPDX-License-Identifier: Apache-2.0
"""Programs of one pointwise operator: the host kernel, in every place that its result may take."""

from __future__ import annotations

import math

import pytest
import torch
from torch.testing import assert_close

from torch_neuronx.compiler import current
from torch_neuronx.lowering.single_pointwise import _KERNELS, KERNEL, lower_single
from torch_neuronx.stablehlo import Builder

DTYPES = (torch.float32, torch.bfloat16)
# One vector and a rest; more than one thread's share.
SHAPES = ((5,), (3, 7), (300, 301))


def sample(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> torch.Tensor:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    x.view(-1)[:4] = torch.tensor([math.nan, -0.0, math.inf, -math.inf]).roll(seed)
    return x.to(dtype)


def same(function, *operands: torch.Tensor) -> None:
    """Compares `function` on the device with the CPU's; it may update its operands."""
    expected = function(*(x.clone() for x in operands))
    result = function(*(x.to("neuron") for x in operands))
    assert result.stride() == expected.stride()
    assert_close(result.cpu(), expected, equal_nan=True)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("overload", _KERNELS, ids=str)
def test_functions(overload, shape, dtype):
    _, tensors, _ = _KERNELS[overload]
    operands = [sample(shape, dtype, seed) for seed in range(tensors)]
    same(overload, *operands)
    if tensors == 2:
        number = torch.tensor(0.75, dtype=dtype)
        same(overload, operands[0], number)
        same(overload, number, operands[1])
    if tensors == 3:
        same(lambda x, y, z: overload(x, y, z, value=0.5), *operands)


@pytest.mark.parametrize(
    "function",
    [
        lambda x, y: x + 2,
        lambda x, y: 2 - x,
        lambda x, y: x * 0.5,
        lambda x, y: torch.sub(x, y, alpha=0.25),
        lambda x, y: torch.relu(x.t()),
        lambda x, y: x.t() + y.t(),
        lambda x, y: x + y.t().contiguous().t(),
        lambda x, y: x.add_(y),
        lambda x, y: x.add_(x),
        lambda x, y: x.t().mul_(3),
        lambda x, y: torch.add(x, y, out=x),
        lambda x, y: torch.add(x, y, out=torch.empty_like(x)),
        lambda x, y: torch.add(x, y, out=torch.zeros_like(x, dtype=torch.float32)),
        lambda x, y: (x[2:4].mul_(3), x)[1],
        lambda x, y: (x[:, 1:3].mul_(3), x)[1],
        lambda x, y: (x.view(-1), x.neg_())[0],
        lambda x, y: x[:1] + y,
        lambda x, y: x[:, :1].expand_as(x) + y,
        lambda x, y: x * y[0, 1],
    ],
)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_operands_and_results(function, dtype):
    same(function, sample((16, 16), dtype, 0), sample((16, 16), dtype, 1))


def test_other_dtypes_take_the_other_path():
    same(lambda x, y: x + y, torch.arange(6), torch.arange(6).float())
    same(lambda x, y: x.bfloat16() + y, torch.rand(6), torch.rand(6))
    same(lambda x, y: x * y, torch.rand(6).bfloat16(), torch.tensor(0.3))


def test_the_kernel_is_called():
    """Without it all of the above passes as well."""
    assert KERNEL in current().kernels
    b = Builder(current().kernels)
    x, y, alpha = b.input((4,), torch.float32), b.input((1,), torch.float32), b.input((), torch.int64)
    value = lower_single(b, torch.ops.aten.add.Tensor, [x, y, alpha], 4, torch.float32, 0)
    assert value is not None
    text = b.finish([value]).text
    assert KERNEL in text and "operator=add" in text and "operand_index = 0" in text
    assert lower_single(Builder(), torch.ops.aten.add.Tensor, [x, y, alpha], 4, torch.float32, None) is None
