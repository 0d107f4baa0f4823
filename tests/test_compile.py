# SPDX-License-Identifier: Apache-2.0
"""torch.compile(backend="neuron"): results, gradients, mutation, aliasing, graph breaks, shapes."""

from __future__ import annotations

import copy
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch.testing import assert_close

import torch_neuronx

F = torch.nn.functional


pytestmark = pytest.mark.usefixtures("fresh_dynamo")


def on_neuron(value):
    if isinstance(value, torch.Tensor):
        return value.detach().to("neuron").requires_grad_(value.requires_grad)
    if isinstance(value, (list, tuple)):
        return type(value)(on_neuron(v) for v in value)
    return value


def compiled(function, **options):
    return torch.compile(function, backend="neuron", fullgraph=True, dynamic=False, **options)


def check(function, *arguments, **tolerance):
    """The compiled function on the device equals the function on the CPU."""
    expected = function(*copy.deepcopy(arguments))
    actual = compiled(function)(*on_neuron(arguments))
    assert_close(actual, expected, check_device=False, **tolerance)


def test_backend_is_listed():
    assert "neuron" in torch._dynamo.list_backends()


def written_by_halves(x):
    result = torch.empty_like(x.t())
    result[0::2], result[1::2] = x.t()[1::2], x.t()[0::2]
    return result


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.tanh(x) @ x.t(),
        lambda x: (x, None, 3, x.t(), x[1:], x + 1),
        lambda x: (x.sum(), x.max(1), x.argsort(1)),
        lambda x: x.reshape(-1)[::2],
        lambda x: x.expand(2, 4, 6) + 1,
        lambda x: (x * 2).expand(2, 4, 6),
        lambda x: torch.cat([x, x[:1]]).split(2),
        lambda x: x.to(torch.bfloat16),
        lambda x: x.new_zeros(3, 2),
        lambda x: torch.where(x > 0, x, torch.tensor(-1.0, device=x.device)),
        lambda x: x[torch.tensor([0, 2, 1], device=x.device)],
        lambda x: x + torch.arange(6, device=x.device),
        lambda x: F.layer_norm(x, (6,)),
        lambda x: x[:0],
        lambda x: x.view(torch.int32),
        lambda x: F.softmax(x, -1).cumsum(0),
        lambda x: {"a": x + 1, "b": [x, x * 2]},
        lambda x: F.pad(x, (1, 2)),
        lambda x: torch.einsum("ij,kj->ik", x, x),
        lambda x: x.unfold(1, 3, 1).sum(-1),
        lambda x: torch.linalg.norm(x, dim=1),
        lambda x: x.flip(0).roll(1, 1),
        written_by_halves,
    ],
)
def test_results(function):
    check(function, torch.randn(4, 6))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.bool])
def test_dtypes(dtype):
    x = (torch.randn(4, 6) * 4).to(dtype)
    check(lambda x: (x.sum(0), x.any(), torch.where(x.bool(), x, x.t().reshape(4, 6))), x)


def test_empty_and_scalar_inputs():
    check(lambda x, y: (x.sum(), torch.cat([x, x]), y * 2, y + x.sum()), torch.randn(0, 3), torch.tensor(2.5))


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x.t(),
        lambda x: x[1:, 2:],
        lambda x: x[:, ::2],
        lambda x: x[3],
        lambda x: x[:, 1],
        lambda x: x.expand(2, 6, 8),
        lambda x: x.reshape(2, 3, 8).transpose(0, 2),
        lambda x: x.as_strided((3, 4), (1, 2), 5),
    ],
)
def test_inputs_that_are_views(view):
    x = torch.randn(6, 8)
    function = compiled(lambda x: x * 2 + 1)
    base = x.to("neuron")
    assert_close(function(view(base)).cpu(), view(x) * 2 + 1)
    assert_close(base.cpu(), x)


def test_an_offset_compiles_nothing():
    """Dynamo does not guard where in its memory a tensor begins."""
    function = compiled(lambda x: x.sin())
    x = torch.randn(100, 7)
    base = x.to("neuron")
    function(base[:3]), function(base[1:4])
    torch.neuron.synchronize()
    before = torch_neuronx.metrics.get_counter_value("CompilationCache.TotalCompilations")
    for start in range(2, 60, 7):
        assert_close(function(base[start : start + 3]).cpu(), x[start : start + 3].sin())
    assert torch_neuronx.metrics.get_counter_value("CompilationCache.TotalCompilations") == before


def test_mutated_inputs():
    def function(x, y):
        x.add_(1)
        y[1:].copy_(x[1:] * 2)
        return x.sum() + y.sum()

    x, y = torch.randn(4, 3), torch.zeros(4, 3)
    a, b = x.to("neuron"), y.to("neuron")
    addresses = a.data_ptr(), b.data_ptr()
    assert_close(compiled(function)(a, b).cpu(), function(x, y))
    assert_close(a.cpu(), x)
    assert_close(b.cpu(), y)
    assert (a.data_ptr(), b.data_ptr()) == addresses


def test_mutated_view_of_a_larger_tensor():
    def function(x):
        x.mul_(2)

    x = torch.randn(6, 8)
    a = x.to("neuron")
    compiled(function)(a[1:4, 2:5])
    x[1:4, 2:5] *= 2
    assert_close(a.cpu(), x)


def test_inputs_that_alias_each_other():
    def function(x, y):
        x.add_(1)
        return y * 2

    x = torch.randn(6)
    a = x.to("neuron")
    expected = function(x[:4], x[2:])
    assert_close(compiled(function)(a[:4], a[2:]).cpu(), expected)
    assert_close(a.cpu(), x)


@pytest.mark.parametrize("threads", [1, 3])
def test_calls_in_close_succession(threads):
    """The worker takes them while it is awake; operators and reads between them see what they have done."""
    function = compiled(lambda x, y: x * 0.5 + y)
    counters = [torch.zeros(7, device="neuron") for _ in range(threads)]
    one = torch.ones(7, device="neuron")
    function(one, one)

    def run(index):
        expected = torch.zeros(7)
        with torch.no_grad():
            for step in range(300):
                counters[index] = function(counters[index], one)
                expected = expected * 0.5 + 1
                if step % 50 == 10:
                    counters[index].add_(3)
                    expected.add_(3)
                    assert_close(counters[index].cpu(), expected)
        return expected

    with ThreadPoolExecutor(threads) as pool:
        expected = list(pool.map(run, range(threads)))
    assert_close(torch.stack(counters).cpu(), torch.stack(expected))


def test_many_small_inputs():
    def function(inputs, updated):
        total = sum(value.to(torch.float32).sum(-1).mean() * (i + 1) for i, value in enumerate(inputs))
        updated.add_(total)
        return total, inputs[1] @ inputs[2], inputs[3].t() * 2

    base = torch.randn(40)
    floats = [torch.randn(3), torch.randn(4, 5), torch.randn(5, 6), torch.randn(2, 3).t(), base[1:7], base[16:32]]
    halves = [torch.randn(i + 1, 7, dtype=torch.bfloat16) for i in range(5)]
    whole = [torch.arange(i, i + 3) for i in range(4)] + [torch.tensor([7 * i]) for i in range(3)]
    flags = [torch.rand(9) > 0.5 for _ in range(4)]
    inputs = [*floats, *halves, *whole, *flags, torch.randn(100, 50), base]
    expected_update, update = torch.zeros(2), torch.zeros(2, device="neuron")
    call = compiled(function)
    for _ in range(2):
        on_device = on_neuron(inputs)
        on_device[4:6] = [on_device[-1][1:7], on_device[-1][16:32]]
        expected, actual = function(inputs, expected_update), call(on_device, update)
        assert_close(actual, expected, check_device=False)
        assert_close(update.cpu(), expected_update)
        inputs[0].mul_(3)
        inputs[-1].sub_(1)


def test_outputs_that_alias_inputs():
    function = compiled(lambda x: (x.view(-1), x.t(), x[1:]))
    a = torch.randn(3, 4).to("neuron")
    flat, transposed, rest = function(a)
    a.fill_(7)
    for value in (flat, transposed, rest):
        assert (value == 7).all()
    assert transposed.stride() == (1, 4)


def test_kv_cache_is_updated_in_place():
    """Donated: the peak grows by less than the cache."""
    cache = torch.zeros(1 << 22, device="neuron").view(2, -1, 64)

    def step(cache, position, new):
        cache.index_copy_(1, position, new)
        return cache[:, :4].sum()

    function = compiled(step)
    new = torch.ones(2, 1, 64, device="neuron")
    function(cache, torch.tensor([0], device="neuron"), new)
    torch.neuron.synchronize()
    torch.neuron.reset_peak_memory_stats()
    before = torch.neuron.memory_allocated()
    result = function(cache, torch.tensor([1], device="neuron"), new)
    assert result.item() == 256
    assert torch.neuron.max_memory_allocated() - before < 1 << 20


def model_and_input():
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3, padding=1),
        torch.nn.BatchNorm2d(8),
        torch.nn.GELU(),
        torch.nn.AdaptiveAvgPool2d(4),
        torch.nn.Flatten(),
        torch.nn.Linear(128, 16),
        torch.nn.LayerNorm(16),
        torch.nn.Linear(16, 5),
    )
    return model, torch.randn(4, 3, 8, 8)


def test_training_step():
    """Gradients, batch-norm statistics and the loss equal the CPU's."""
    model, x = model_and_input()
    target = torch.tensor([0, 1, 2, 3])
    device_model = copy.deepcopy(model).to("neuron")
    step = compiled(lambda m, x, t: F.cross_entropy(m(x), t))
    for _ in range(2):
        expected = F.cross_entropy(model(x), target)
        actual = step(device_model, x.to("neuron"), target.to("neuron"))
        expected.backward()
        actual.backward()
        assert_close(actual.cpu(), expected, rtol=1e-5, atol=1e-5)
    for (name, parameter), other in zip(model.named_parameters(), device_model.parameters(), strict=True):
        assert_close(other.grad.cpu(), parameter.grad, rtol=1e-4, atol=1e-5, msg=lambda m, name=name: f"{name}: {m}")
    for buffer, other in zip(model.buffers(), device_model.buffers(), strict=True):
        assert_close(other.cpu(), buffer)


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.AdamW])
def test_compiled_optimizer(optimizer):
    model, _ = model_and_input()
    device_model = copy.deepcopy(model).to("neuron")
    options = {"momentum": 0.9} if optimizer is torch.optim.SGD else {}
    ours, theirs = (
        optimizer(device_model.parameters(), lr=0.1, **options),
        optimizer(model.parameters(), lr=0.1, **options),
    )
    step = torch.compile(lambda: ours.step(), backend="neuron", dynamic=False)
    for _ in range(3):
        for a, b in zip(model.parameters(), device_model.parameters(), strict=True):
            a.grad = torch.randn_like(a)
            b.grad = a.grad.to("neuron")
        theirs.step()
        step()
    for a, b in zip(model.parameters(), device_model.parameters(), strict=True):
        assert_close(b.cpu(), a, rtol=1e-4, atol=1e-5)


def test_graph_break():
    def function(x):
        y = x * 2
        torch._dynamo.graph_break()
        return y + 1

    x = torch.randn(3)
    actual = torch.compile(function, backend="neuron", dynamic=False)(x.to("neuron"))
    assert_close(actual.cpu(), x * 2 + 1)


def test_activation_checkpointing_with_dropout():
    """The backward pass sees the mask that the forward pass has drawn."""
    from torch.utils.checkpoint import checkpoint

    def function(x):
        return checkpoint(lambda x: F.dropout(x.sin(), 0.5).cos(), x, use_reentrant=False).sum()

    x = torch.randn(64, 64).to("neuron").requires_grad_()
    step = compiled(function)
    loss = step(x)
    loss.backward()
    sine = x.detach().sin().cpu()
    # d cos(m s)/dx = -sin(m s) m cos x, with m 0 or 2: zero where it was dropped.
    kept = x.grad.cpu() != 0
    assert 0.4 < kept.float().mean() < 0.6
    mask = kept.float() * 2
    assert_close(x.grad.cpu(), -(mask * sine).sin() * mask * x.detach().cpu().cos(), rtol=1e-4, atol=1e-5)
    assert_close(loss.detach().cpu(), (mask * sine).cos().sum(), rtol=1e-4, atol=1e-3)


def test_random_operators_are_reproducible():
    function = compiled(lambda x: (F.dropout(x, 0.5), torch.randn_like(x), torch.rand(3, device=x.device)))
    x = torch.ones(8, 8, device="neuron")
    torch.manual_seed(5)
    first, second = function(x), function(x)
    torch.manual_seed(5)
    again = function(x)
    for a, b, c in zip(first, again, second, strict=True):
        assert_close(a, b)
        assert (a != c).any()


def test_autocast_inside():
    def function(x, w):
        with torch.autocast("neuron", dtype=torch.bfloat16):
            return x @ w

    actual = compiled(function)(torch.ones(2, 3, device="neuron"), torch.ones(3, 4, device="neuron"))
    assert actual.dtype == torch.bfloat16 and (actual == 3).all()


def test_functional_call_and_disable():
    model = torch.nn.Linear(4, 4)

    @torch.compiler.disable
    def untouched(x):
        return x + 1

    def function(parameters, x):
        return untouched(torch.func.functional_call(model, parameters, (x,)))

    parameters = {name: p.detach() * 2 for name, p in model.named_parameters()}
    x = torch.randn(2, 4)
    actual = torch.compile(function, backend="neuron", dynamic=False)(
        {name: p.to("neuron") for name, p in parameters.items()}, x.to("neuron")
    )
    assert_close(actual.cpu(), function(parameters, x))


def test_0_dim_cpu_tensor_is_an_operand():
    function = compiled(lambda x, s: x * s)
    x = torch.ones(3, device="neuron")
    for value in (1.0, 2.0, 3.0):
        assert_close(function(x, torch.tensor(value)).cpu(), torch.full((3,), value))


def test_module_compile_and_repeated_blocks():
    """Equal blocks share one program."""

    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(8, 8)

        def forward(self, x):
            return self.linear(x).relu()

    blocks = torch.nn.ModuleList(Block() for _ in range(4))
    x = torch.randn(2, 8)
    expected = x
    for block in blocks:
        expected = block(expected)
    blocks.to("neuron")
    torch_neuronx.neuron_dynamo_backend.reset_dynamo_metrics()
    for block in blocks:
        block.compile(backend="neuron", fullgraph=True, dynamic=False)
    actual = x.to("neuron")
    with torch.no_grad():
        for block in blocks:
            actual = block(actual).clone()
    assert_close(actual.cpu(), expected)
    assert torch_neuronx.neuron_dynamo_backend.get_dynamo_metrics()["graphs"] == 1


def test_linear_regression_of_strides():
    """What is saved for the backward pass keeps its layout."""

    def function(x, w):
        q, k, v = (x @ w).chunk(3, -1)
        return (q.transpose(0, 1) @ k).softmax(-1) @ v.transpose(0, 1)

    x, w = torch.randn(5, 6, requires_grad=True), torch.randn(6, 15, requires_grad=True)
    a, b = on_neuron(x), on_neuron(w)
    function(x, w).square().sum().backward()
    compiled(function)(a, b).square().sum().backward()
    assert_close(a.grad.cpu(), x.grad, rtol=1e-4, atol=1e-4)
    assert_close(b.grad.cpu(), w.grad, rtol=1e-4, atol=1e-4)
