# SPDX-License-Identifier: Apache-2.0
"""`torch.cond`, `while_loop` and `scan` inside a compiled graph, against the CPU."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch._higher_order_ops import scan, while_loop
from torch.testing import assert_close

from torch_neuronx.neuron_dynamo_backend import get_dynamo_metrics, reset_dynamo_metrics

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


def compiled(function):
    return torch.compile(function, backend="neuron", fullgraph=True, dynamic=False)


def leaves(tensors):
    return [t.detach().clone().requires_grad_(t.is_floating_point()) for t in tensors]


def check(function, *arguments, gradients=False):
    """Results, and the gradients of their sum, equal those of the CPU."""
    expected_inputs = leaves(arguments) if gradients else arguments
    actual_inputs = [t.to("neuron") for t in arguments]
    if gradients:
        actual_inputs = leaves(actual_inputs)
    expected, actual = function(*expected_inputs), compiled(function)(*actual_inputs)
    assert_close(actual, expected, check_device=False)
    if gradients:
        for results in (expected, actual):
            flat = results if isinstance(results, tuple) else (results,)
            sum(result.sum() for result in flat).backward()
        for mine, theirs in zip(actual_inputs, expected_inputs, strict=True):
            assert_close(mine.grad, theirs.grad, check_device=False)


def either(x):
    return torch.cond(x.sum() > 0, lambda x: x.sin() + 1, lambda x: (x * 2).softmax(-1), (x,))


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_cond(dtype, gradients):
    x = torch.rand(3, 4).to(dtype)
    check(either, x, gradients=gradients)
    check(either, -x, gradients=gradients)


def test_one_program_serves_both_branches():
    reset_dynamo_metrics()
    function = compiled(either)
    x = torch.rand(3, 4)
    for value in (x, -x):
        assert_close(function(value.to("neuron")).cpu(), either(value))
    assert get_dynamo_metrics()["graphs"] == 1


def attention_or_copy(q):
    return torch.cond(q.sum() > 0, lambda q: F.scaled_dot_product_attention(q, q, q), lambda q: q.clone(), (q,))


def nested(x, w):
    def inner(x):
        return torch.cond(x.max() > 1, lambda x: x @ w, lambda x: x - 1, (x,))

    return torch.cond(x.sum() > 0, inner, lambda x: x * 2, (x,))


def chosen_rows(x, index):
    return torch.cond(x.sum() > 0, lambda x, i: x[i], lambda x, i: x[:2] * 2, (x, index))


def test_branches_with_kernels_captured_tensors_and_checked_indices():
    check(attention_or_copy, torch.rand(1, 2, 16, 8))
    for scale in (4, 1, -1):
        check(nested, torch.rand(3, 4) * scale, torch.randn(4, 4))
    for scale in (1, -1):
        check(chosen_rows, torch.rand(3, 4) * scale, torch.tensor([0, 2]))


def counted(x):
    return while_loop(lambda i, x: i < 5, lambda i, x: (i + 1, x * 2), (torch.tensor(0, device=x.device), x))


def until_large(x, w):
    return while_loop(lambda x: x.abs().sum() < 100, lambda x: (x @ w * 2 + 1,), (x,))


def test_while_loop():
    check(counted, torch.randn(3, 4))
    check(until_large, torch.randn(3, 4), torch.randn(4, 4))
    check(until_large, torch.full((3, 4), 100.0), torch.randn(4, 4))  # no step at all


def recurrence(x, w):
    def step(state, row):
        return torch.tanh(state @ w + row), state.sin()

    return scan(step, torch.zeros(4, device=x.device), x, dim=0)


@pytest.mark.parametrize("gradients", [False, True])
def test_scan(gradients):
    check(recurrence, torch.randn(6, 4), torch.randn(4, 4), gradients=gradients)


def test_a_random_branch_and_a_random_loop():
    x = torch.rand(1000)

    def dropped(x):
        return torch.cond(x.sum() > 0, lambda x: F.dropout(x, 0.5), lambda x: x * 2, (x,))

    function = compiled(dropped)
    torch.manual_seed(1)
    first, second = function(x.to("neuron")), function(x.to("neuron"))
    torch.manual_seed(1)
    again = function(x.to("neuron"))
    assert torch.equal(first, again) and not torch.equal(first, second)
    assert 0.4 < (first == 0).float().mean().item() < 0.6

    def noisy(x):
        return while_loop(lambda x: x.sum() < 5000, lambda x: (x + torch.rand_like(x),), (x,))

    with pytest.raises(Exception, match=r"while_loop has a random operator in its body.*draw them before.*\.py:\d+"):
        compiled(noisy)(x.to("neuron"))


def test_the_index_tells_branches_apart():
    """Two functions that differ in a branch only are two programs."""
    x = torch.rand(3, 4)
    for number in (1, 2, 3):
        check(lambda x, n=number: torch.cond(x.sum() > 0, lambda x: x + n, lambda x: x.clone(), (x,)), x)
