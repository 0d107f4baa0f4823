# SPDX-License-Identifier: Apache-2.0
"""Graphs without gradients: traced once, and like PyTorch's own in what they write, return and share."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.testing import assert_close

from torch_neuronx.dynamo import calls, inference


@pytest.fixture
def traces(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bool]]:
    """For each graph that was traced in one go, whether the trace was taken."""
    seen: list[bool] = []
    original = inference.trace

    def trace(*arguments: Any) -> Any:
        graph = original(*arguments)
        seen.append(graph is not None)
        return graph

    monkeypatch.setattr(inference, "trace", trace)
    monkeypatch.setenv("TORCH_NEURONX_NEFF_DISABLE_CACHE", "1")
    from torch_neuronx import compiler

    for cached in (compiler.neff_cache, compiler.program_index):
        cached.cache_clear()
    torch._dynamo.reset()
    yield seen
    monkeypatch.undo()
    for cached in (compiler.neff_cache, compiler.program_index):
        cached.cache_clear()
    torch._dynamo.reset()


def inputs() -> list[torch.Tensor]:
    return [torch.arange(12.0).reshape(3, 4) / 5 - 1, torch.arange(12.0).reshape(3, 4).cos()]


def check(function: Callable[..., Any], tensors: list[torch.Tensor]) -> None:
    """Compiled on the device as on the CPU: results, what the inputs become, and who shares memory with whom."""
    on_device = [tensor.to("neuron") for tensor in tensors]
    compiled = torch.compile(function, backend="neuron", fullgraph=True, dynamic=False)
    for _ in range(2):  # the second call finds the graph
        expected, actual = function(*tensors), compiled(*on_device)
        assert_close([tensor.cpu() for tensor in flat(actual)], flat(expected), rtol=1e-5, atol=1e-6)
        assert_close([tensor.cpu() for tensor in on_device], tensors, rtol=1e-5, atol=1e-6)
        assert [t.shape for t in on_device] == [t.shape for t in tensors]
        assert sharing(flat(actual) + on_device) == sharing(flat(expected) + tensors)


def flat(result: Any) -> list[torch.Tensor]:
    return [t for t in torch.utils._pytree.tree_leaves(result) if isinstance(t, torch.Tensor)]


def sharing(tensors: list[torch.Tensor]) -> list[int]:
    """For each tensor, the first one that has the same memory."""
    memories = [tensor.untyped_storage()._cdata for tensor in tensors]
    return [memories.index(memory) for memory in memories]


def pure(x, y):
    return torch.nn.functional.layer_norm(x @ y.T, (3,)).softmax(-1), None, 3


def writes_an_intermediate(x, y):
    z = x * 2
    z[0].add_(y[1])
    z.mul_(y)
    return z.relu_()


def views_of_one_result(x, y):
    z = x + y
    return z, z.view(-1), z.t(), z[1:]


def a_view_before_the_write(x, y):
    z = x + y
    view = z.view(-1)
    z.add_(1)
    return view, z


def writes_an_input(x, y):
    x.add_(y)
    return x * 2


def writes_part_of_an_input(x, y):
    x[1].copy_(y[0])
    x[:, 2] = 5.0
    return x.sum()


def writes_by_index(x, y):
    x.index_copy_(0, torch.tensor([2, 0], device=x.device), y[:2])
    return x @ y.T


def reads_then_writes(x, y):
    before = x.clone()
    x.mul_(3)
    y.copy_(before)
    return before


@pytest.mark.parametrize(
    "function",
    [
        pure,
        writes_an_intermediate,
        views_of_one_result,
        a_view_before_the_write,
        writes_an_input,
        writes_part_of_an_input,
        writes_by_index,
        reads_then_writes,
    ],
)
@pytest.mark.parametrize("mode", [contextlib.nullcontext, torch.no_grad, torch.inference_mode])
def test_one_trace(function: Callable[..., Any], mode: Callable[[], Any], traces: list[bool]) -> None:
    with mode():
        check(function, inputs())
    assert traces == [True]


def returns_a_view_of_an_input(x, y):
    return x.view(-1), y + 1


def returns_a_view_of_a_written_input(x, y):
    x.add_(y)
    return x.t(), x * 2


def changes_the_shape_of_an_intermediate(x, y):
    z = x * 2
    z.t_()
    return z @ y


def turns_gradients_on(x, y):
    with torch.enable_grad():
        return x * y


@pytest.mark.parametrize(
    "function",
    [
        returns_a_view_of_an_input,
        returns_a_view_of_a_written_input,
        changes_the_shape_of_an_intermediate,
        turns_gradients_on,
    ],
)
def test_what_is_left_to_aot_autograd(function: Callable[..., Any], traces: list[bool]) -> None:
    tensors = inputs()
    tensors[0].requires_grad_(function is turns_gradients_on)
    on_device = [tensor.detach().to("neuron").requires_grad_(tensor.requires_grad) for tensor in tensors]
    with torch.no_grad():
        expected = function(*tensors)
        actual = torch.compile(function, backend="neuron", fullgraph=True, dynamic=False)(*on_device)
    assert_close([t.detach().cpu() for t in flat(actual)], [t.detach() for t in flat(expected)])
    assert_close([t.detach().cpu() for t in on_device], [t.detach() for t in tensors])
    assert [t.requires_grad for t in flat(actual)] == [t.requires_grad for t in flat(expected)]
    assert sharing(flat(actual) + on_device) == sharing(flat(expected) + tensors)
    assert traces == []


def test_inputs_that_share_memory_and_one_is_written(traces: list[bool]) -> None:
    def function(x, y):
        x.add_(1)
        return y * 2

    results = []
    for device in ("cpu", "neuron"):
        memory = torch.arange(8.0).to(device)
        call = torch.compile(function, backend="neuron", dynamic=False) if device == "neuron" else function
        with torch.no_grad():
            results.append((call(memory[:6], memory[2:]).cpu(), memory.cpu()))
    assert_close(results[1], results[0])
    assert traces == [False]


def test_inputs_that_share_memory_and_are_only_read(traces: list[bool]) -> None:
    memory = torch.arange(8.0)
    on_device = memory.to("neuron")

    def function(x, y):
        return x.sin() * y

    compiled = torch.compile(function, backend="neuron", fullgraph=True, dynamic=False)
    assert_close(compiled(on_device[:6], on_device[2:]).cpu(), function(memory[:6], memory[2:]))
    assert traces == [True]


def test_gradients_are_not_lost(traces: list[bool]) -> None:
    x = torch.arange(6.0).to("neuron").requires_grad_()
    torch.compile(lambda x: x.sin().sum(), backend="neuron", dynamic=False)(x).backward()
    assert x.grad is not None
    assert_close(x.grad.cpu(), torch.arange(6.0).cos())
    assert traces == []


def test_parameters_without_gradients(traces: list[bool]) -> None:
    module = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.Linear(8, 2))
    x = inputs()[0]
    with torch.no_grad():
        expected = module(x)
        compiled = torch.compile(module.to("neuron"), backend="neuron", fullgraph=True, dynamic=False)
        actual = compiled(x.to("neuron"))
    assert_close(actual.cpu(), expected)
    assert not actual.requires_grad
    assert traces == [True]


@pytest.mark.parametrize("inside", [False, True])
def test_autocast(inside: bool, traces: list[bool]) -> None:
    def function(x, y):
        with torch.autocast(x.device.type, torch.bfloat16) if inside else contextlib.nullcontext():
            return x @ y.T

    tensors = inputs()
    results = []
    for device in ("cpu", "neuron"):
        outside = contextlib.nullcontext() if inside else torch.autocast(device, torch.bfloat16)
        call = torch.compile(function, backend="neuron", dynamic=False) if device == "neuron" else function
        with outside:
            results.append(call(*(tensor.to(device) for tensor in tensors)).cpu())
    assert results[1].dtype == torch.bfloat16
    assert_close(results[1], results[0])
    assert traces == [True]


def test_random_numbers_follow_the_seed(traces: list[bool]) -> None:
    compiled = torch.compile(
        lambda x: torch.nn.functional.dropout(x, 0.5) + torch.rand_like(x), backend="neuron", dynamic=False
    )
    x = torch.ones(64, device="neuron")
    drawn = []
    state = torch.random.get_rng_state()
    for seed in (1, 1, 2):
        torch.neuron.manual_seed(seed)
        drawn.append(compiled(x).cpu())
    assert torch.equal(drawn[0], drawn[1]) and not torch.equal(drawn[0], drawn[2])
    assert torch.equal(torch.random.get_rng_state(), state)  # a trace draws no numbers of the CPU
    assert traces == [True]


@pytest.mark.parametrize("training", [False, True])
def test_batch_normalization_writes_its_statistics(training: bool, traces: list[bool]) -> None:
    def function(x, mean, variance):
        y = torch.nn.functional.batch_norm(x, mean, variance, training=training)
        return y + mean.sum()

    with torch.no_grad():
        check(function, [torch.arange(24.0).reshape(4, 3, 2).sin(), torch.zeros(3), torch.ones(3)])
    assert traces == [not training]


@torch.library.custom_op("torch_neuronx_tests::doubled", mutates_args=())
def doubled(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@doubled.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def test_another_librarys_operator_is_left_to_aot_autograd(traces: list[bool]) -> None:
    with pytest.raises(Exception, match="doubled"), torch.no_grad():
        torch.compile(lambda x: doubled(x) + 1, backend="neuron", dynamic=False)(torch.ones(3, device="neuron"))
    assert traces == []


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = torch.nn.LayerNorm(4), torch.nn.Linear(4, 4)
        self.register_buffer("seen", torch.zeros(3, 4))

    def forward(self, x):
        self.seen.add_(x)
        a, b = self.linear(self.norm(x)).chunk(2, -1)
        return x + torch.cat([a * b.sigmoid(), b], -1)


def test_equal_layers_are_traced_once(traces: list[bool], monkeypatch: pytest.MonkeyPatch) -> None:
    ran = []
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(Block() for _ in range(5)))
    on_device = copy.deepcopy(model).to("neuron")
    x = inputs()[0]
    original = calls._like
    monkeypatch.setattr(calls, "_like", lambda tensor: ran.append(tensor) or original(tensor))
    compiled = torch.compile(on_device, backend="neuron", fullgraph=True, dynamic=False)
    with torch.no_grad():
        for _ in range(2):
            assert_close(compiled(x.to("neuron")).cpu(), model(x))
    for module, expected in zip(on_device, model, strict=True):
        assert_close(module.seen.cpu(), expected.seen)
    assert traces == [True]
    assert 0 < len(ran) < 20  # tensors of calls; all layers have more than 50


def a_view_after_the_write(x, y):
    z = x + y
    z.add_(1)
    return z.view(-1) * 2, z


def a_result_that_is_the_operand(x, y):
    z = x * 2
    same = z.contiguous()
    same.add_(y)
    return z + same, z


def an_input_written_twice(x, y):
    x.mul_(y).add_(x)
    x += 1
    return x * y


def a_view_of_an_input_is_read_after_a_write(x, y):
    row = x[1]
    x.add_(1)
    return row + y[0]


def an_operand_and_its_view(x, y):
    z = x + y
    z.add_(z[0].clone())
    z[1].add_(z[2])
    return z * 2


def lists(x, y):
    first, second = [x, x * 2], [y, y * 3]
    torch._foreach_add_(first, second, alpha=2)
    torch._foreach_addcdiv_(first, second, [t.exp() for t in second], value=0.5)
    torch._foreach_lerp_(second, first, 0.25)
    minimum = torch._foreach_clamp_min(first, 0.5)
    return *torch._foreach_mul(first, second), *torch._foreach_sub(minimum, [1.0, 2.0])


def lists_of_two_dtypes(x, y):
    halves = [x.bfloat16(), y.bfloat16()]
    torch._foreach_add_(halves, [y, x])
    return halves[0] * 2, halves[1]


def numbers_that_differ_in_kind(x, y):
    return x * True, x * 1, x * 1.0, x * -0.0 / y, x * 0.0 / y


@pytest.mark.parametrize(
    "function",
    [
        a_view_after_the_write,
        a_result_that_is_the_operand,
        an_input_written_twice,
        a_view_of_an_input_is_read_after_a_write,
        an_operand_and_its_view,
        lists,
        lists_of_two_dtypes,
        numbers_that_differ_in_kind,
    ],
)
def test_calls_and_memory(function: Callable[..., Any], traces: list[bool]) -> None:
    with torch.no_grad():
        check(function, inputs())
    assert traces == [True]


@pytest.mark.parametrize("foreach", [False, True])
@pytest.mark.parametrize("name", ["AdamW", "SGD", "RMSprop"])
def test_an_optimizer_is_traced_once(name: str, foreach: bool, traces: list[bool]) -> None:
    results = []
    for device in ("cpu", "neuron"):
        torch.manual_seed(0)
        parameters = [torch.nn.Parameter(torch.randn(4, 3).to(device)) for _ in range(5)]
        optimizer = getattr(torch.optim, name)(parameters, lr=0.1, weight_decay=0.01, foreach=foreach)
        step = torch.compile(optimizer.step, backend="neuron") if device == "neuron" else optimizer.step
        for number in range(3):
            for parameter in parameters:
                parameter.grad = (parameter.detach() * (number + 1)).cos()
            step()
        results.append([parameter.detach().cpu() for parameter in parameters])
    assert_close(results[1], results[0], rtol=1e-4, atol=1e-5)
    assert traces and all(traces)
