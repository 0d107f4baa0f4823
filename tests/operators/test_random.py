# SPDX-License-Identifier: Apache-2.0
"""Random operators: reproducible from the seed, and distributed as they should be.

The bounds are wide enough (five standard deviations or more) that a right generator passes with any seed.
"""

from __future__ import annotations

import math

import pytest
import torch

import torch_neuronx

N = 40_000


@pytest.fixture(autouse=True)
def on_the_device():
    torch.manual_seed(0)
    torch_neuronx.clear_op_tracking()
    yield
    assert torch_neuronx.get_fallback_ops() == []


def assert_mean(x: torch.Tensor, mean: float, std: float) -> None:
    """The average of `x`, whose elements have this mean and standard deviation."""
    assert abs(x.double().mean().item() - mean) < 5 * std / math.sqrt(x.numel())


MAKERS = {
    "rand": lambda: torch.rand(N, device="neuron"),
    "randn": lambda: torch.randn(N, device="neuron"),
    "randint": lambda: torch.randint(0, 1000, (N,), device="neuron"),
    "randperm": lambda: torch.randperm(N, device="neuron"),
    "bernoulli": lambda: torch.empty(N, device="neuron").bernoulli_(0.5),
    "dropout": lambda: torch.dropout(torch.ones(N, device="neuron"), 0.5, True),
    "exponential": lambda: torch.empty(N, device="neuron").exponential_(),
    "rand_like": lambda: torch.rand_like(torch.empty(N, device="neuron")),
    "multinomial": lambda: torch.multinomial(torch.ones(8, device="neuron"), 100, True),
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS.keys())
def test_seed_decides(make):
    first, second = make().cpu(), make().cpu()
    assert not torch.equal(first, second)
    torch.manual_seed(0)
    torch.testing.assert_close(make().cpu(), first)
    torch.manual_seed(1)
    assert not torch.equal(make().cpu(), first)


def test_new_seed_does_not_compile():
    torch.rand(17, device="neuron").cpu()
    before = torch_neuronx.metrics.get_counter_value("CompilationCache.InMemoryMisses")
    torch.manual_seed(123)
    torch.rand(17, device="neuron").cpu()
    assert before and torch_neuronx.metrics.get_counter_value("CompilationCache.InMemoryMisses") == before


def test_generator_argument():
    generators = [torch.Generator("neuron").manual_seed(5) for _ in range(2)]
    first, second = (torch.randn(100, device="neuron", generator=g).cpu() for g in generators)
    torch.testing.assert_close(first, second)


def test_streams_are_independent():
    x = torch.stack([torch.rand(N, device="neuron").cpu() for _ in range(4)])
    correlation = torch.corrcoef(x).fill_diagonal_(0)
    assert correlation.abs().max() < 5 / math.sqrt(N)


@pytest.mark.parametrize(
    "dtype, digits", [(torch.float32, 24), (torch.float64, 53), (torch.bfloat16, 8), (torch.float16, 11)]
)
def test_uniform(dtype, digits):
    x = torch.rand(N, device="neuron", dtype=dtype).cpu()
    assert x.min() >= 0 and x.max() < 1
    assert_mean(x, 0.5, math.sqrt(1 / 12))
    assert_mean((x.double() - 0.5) ** 2, 1 / 12, math.sqrt(1 / 180))
    assert torch.equal(x.double() * 2.0**digits, (x.double() * 2.0**digits).round())
    assert x.unique().numel() > min(2**digits, N) * 0.9


def test_uniform_bounds():
    x = torch.empty(N, device="neuron").uniform_(-2, 3).cpu()
    assert x.min() >= -2 and x.max() <= 3
    assert_mean(x, 0.5, 5 / math.sqrt(12))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_normal(dtype):
    x = torch.randn(N, device="neuron", dtype=dtype).cpu().double()
    assert x.isfinite().all()
    assert_mean(x, 0, 1)
    assert_mean(x**2, 1, math.sqrt(2))
    assert_mean(x**4, 3, math.sqrt(96))
    assert_mean((x.abs() < 1).double(), 0.6827, 0.47)


def test_normal_of_mean_and_std():
    x = torch.empty(N, device="neuron").normal_(2, 3).cpu()
    assert_mean(x, 2, 3)
    mean, std = torch.tensor([1.0, -2.0]), torch.tensor([0.1, 2.0])
    x = torch.normal(mean.expand(N, 2).to("neuron"), std.to("neuron")).cpu()
    for column in range(2):
        assert_mean(x[:, column], mean[column].item(), std[column].item())
        assert_mean((x[:, column] - mean[column]) ** 2, std[column].item() ** 2, math.sqrt(2) * std[column].item() ** 2)


def test_complex_normal():
    x = torch.randn(N, device="neuron", dtype=torch.complex64).cpu()
    assert_mean(x.real, 0, math.sqrt(0.5))
    assert_mean(x.imag**2, 0.5, math.sqrt(0.5))
    assert_mean(x.real * x.imag, 0, 0.5)


@pytest.mark.parametrize("low, high", [(0, 2), (-3, 5), (10, 11)])
def test_randint(low, high):
    x = torch.randint(low, high, (N,), device="neuron").cpu()
    values, counts = x.unique(return_counts=True)
    assert values.tolist() == list(range(low, high))
    share = 1 / (high - low)
    assert (counts - N * share).abs().max() <= 5 * math.sqrt(N * share * (1 - share))


def test_randint_of_wide_range():
    x = torch.randint(-(2**60), 2**60, (N,), device="neuron").cpu()
    assert_mean(x.double() / 2**60, 0, math.sqrt(1 / 3))


@pytest.mark.parametrize("dtype, top", [(torch.int8, 127), (torch.uint8, 255), (torch.bool, 1), (torch.float32, 2**24)])
def test_random_in_place(dtype, top):
    x = torch.empty(N, device="neuron", dtype=dtype).random_().cpu().double()
    assert x.min() >= 0 and x.max() <= top
    assert_mean(x, top / 2, (top + 1) / math.sqrt(12) + 0.5)


def test_randperm():
    x = torch.randperm(1000, device="neuron").cpu()
    assert torch.equal(x.sort().values, torch.arange(1000))
    assert (x == torch.arange(1000)).sum() < 10


def test_bernoulli():
    assert_mean(torch.empty(N, device="neuron").bernoulli_(0.3).cpu(), 0.3, math.sqrt(0.21))
    p = torch.tensor([0.0, 0.2, 1.0]).expand(N, 3)
    x = torch.bernoulli(p.to("neuron")).cpu()
    assert x[:, 0].max() == 0 and x[:, 2].min() == 1
    assert_mean(x[:, 1], 0.2, 0.4)


def test_dropout():
    x = torch.ones(N, device="neuron", requires_grad=True)
    y = torch.dropout(x, 0.25, True)
    y.sum().backward()
    torch.testing.assert_close(x.grad.cpu(), y.detach().cpu())
    torch.testing.assert_close(y.detach().cpu().unique(), torch.tensor([0, 4 / 3]))
    assert_mean((y > 0).cpu(), 0.75, math.sqrt(0.75 * 0.25))


@pytest.mark.parametrize(
    "p, train, share", [(0.25, True, 0.75), (0.0, True, 1.0), (1.0, True, 0.0), (0.25, False, 1.0)]
)
def test_native_dropout(p, train, share):
    x = torch.full((N,), 2.0, device="neuron")
    y, mask = torch.native_dropout(x, p, train)
    y, mask = y.cpu(), mask.cpu()
    assert_mean(mask, share, math.sqrt(share * (1 - share)) or 1e-9)
    scale = 1 / share if train and share else 1.0
    torch.testing.assert_close(y, mask * 2.0 * scale)


def test_other_distributions():
    def empty():
        return torch.empty(N, device="neuron")

    x = empty().exponential_(2.0).cpu()
    assert x.min() > 0
    assert_mean(x, 0.5, 0.5)
    x = empty().geometric_(0.25).cpu()
    assert x.min() == 1 and torch.equal(x, x.round())
    assert_mean(x, 4, math.sqrt(12))
    x = empty().log_normal_(0.5, 0.25).cpu()
    assert_mean(x.log(), 0.5, 0.25)
    x = empty().cauchy_(1.0, 2.0).cpu()
    assert_mean((x < 1).double(), 0.5, 0.5)
    assert_mean((x < 3).double(), 0.75, 0.5)


def test_multinomial_with_replacement():
    weights = torch.tensor([[1.0, 2.0, 0.0, 7.0], [1.0, 1.0, 1.0, 1.0]])
    x = torch.multinomial(weights.to("neuron"), N, replacement=True).cpu()
    for row in range(2):
        shares = weights[row] / weights[row].sum()
        for index in range(4):
            assert_mean((x[row] == index).double(), shares[index].item(), 0.5 if shares[index] else 1e-9)


def test_multinomial_without_replacement():
    weights = torch.tensor([1.0, 2.0, 0.0, 7.0]).expand(N // 10, 4)
    x = torch.multinomial(weights.to("neuron"), 3).cpu()
    assert not (x == 2).any()
    assert torch.equal(x.sort().values, torch.tensor([0, 1, 3]).expand(N // 10, 3))
    assert_mean((x[:, 0] == 3).double(), 0.7, 0.46)
