# SPDX-License-Identifier: Apache-2.0
"""What training graphs keep between forward and backward, and where the backward pass has its memory from."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

from torch_neuronx.dynamo.compile import CompiledGraph
from torch_neuronx.lowering import LoweringError
from torch_neuronx.neuron_dynamo_backend import NEFFExecutionError

F = torch.nn.functional
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


pytestmark = pytest.mark.usefixtures("fresh_dynamo")


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Texts of the graphs ("graph.txt") or programs ("program.mlir") of a role that the test has compiled."""
    monkeypatch.setenv("TORCH_NEURONX_DEBUG_DIR", str(tmp_path))
    monkeypatch.setenv("TORCH_NEURONX_PRESERVE_COMPILATION_ARTIFACTS", "1")

    def texts(role: str, file: str) -> list[str]:
        torch.neuron.synchronize()
        return [path.read_text() for path in sorted(tmp_path.rglob(f"graph_*_{role}_of_*/{file}"))]

    return texts


def step(function, inputs, device, compile=False):
    """Results of `function` and gradients of the floating-point inputs, on the CPU."""
    if compile:
        function = torch.compile(function, backend="neuron", fullgraph=True, dynamic=False)
    inputs = [x.to(device, copy=True).requires_grad_(x.is_floating_point()) for x in inputs]
    results = function(*inputs)
    results = results if isinstance(results, tuple) else (results,)
    results[0].sum().backward()
    return [y.detach().cpu() for y in results], [x.grad.cpu() for x in inputs if x.grad is not None]


def check(function, *inputs, **tolerance):
    expected, actual = step(function, inputs, "cpu"), step(function, inputs, "neuron", compile=True)
    assert_close(actual, expected, equal_nan=True, **tolerance)


# -- cross entropy ---------------------------------------------------------------------------------


def scores(samples: int, classes: int, dtype: torch.dtype = torch.float32):
    return (torch.randn(samples, classes) * 4).to(dtype), torch.randint(0, classes, (samples,))


FUSED = "torch.ops.torch_neuronx.cross_entropy_backward.default"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("samples, classes", [(1, 1), (7, 33), (63, 20011)])
def test_cross_entropy(programs, dtype, samples, classes):
    """Both with the host kernel and without it. Half types are widened for the loss."""
    x, target = scores(samples, classes, dtype)
    target[samples // 2 + 1 :: 5] = -100
    check(lambda x, target: F.cross_entropy((x * 2).float(), target), x, target)
    (graph,) = programs("backward", "graph.txt")
    assert FUSED in graph


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize("weighted", [False, True])
def test_cross_entropy_arguments(programs, reduction, weighted):
    x, target = scores(6, 9)
    weight = torch.rand(9).requires_grad_(False)

    def loss(x, target, weight):
        weight = weight.detach() if weighted else None
        return F.cross_entropy(x, target, weight, ignore_index=int(target.shape[0] - 4), reduction=reduction)

    check(loss, x, target, weight)
    (graph,) = programs("backward", "graph.txt")
    assert FUSED in graph


def test_cross_entropy_of_a_language_model_in_half_precision(programs):
    """Widened before the positions are flattened; what is saved is the half-type logits, and no tensor is wider."""
    x = torch.randn(2, 5, 40).to(torch.bfloat16)
    target = torch.randint(0, 40, (2, 5))
    check(lambda x, target: F.cross_entropy((x * 2).float().view(-1, 40), target.flatten()), x, target)
    (graph,) = programs("backward", "graph.txt")
    assert FUSED in graph
    assert "f32[10, 40]" not in graph and "f32[2, 5, 40]" not in graph


@pytest.mark.parametrize("classes", [40, 20011])
def test_cross_entropy_of_special_numbers(classes):
    x, target = scores(64, classes)
    x[0] = -math.inf
    x[1, :] = math.inf
    x[2, 3] = math.nan
    x[3, 3:] = -math.inf
    x[4, classes - 1] = math.inf
    x[5] = 1e30
    x[6, 5] = 200.0
    x[7, 7] = -1e30
    check(lambda x, target: F.cross_entropy(x, target, reduction="none"), x, target)


def test_cross_entropy_without_samples():
    x, target = scores(0, 5)
    check(lambda x, target: F.cross_entropy(x, target), x, target)


@pytest.mark.parametrize(
    "loss",
    [
        lambda x, target: F.cross_entropy(x, target, label_smoothing=0.1),
        lambda x, target: (F.nll_loss(y := F.log_softmax(x, 1), target), y),
        lambda x, target: F.nll_loss(F.log_softmax(x, 1), target) + F.log_softmax(x, 0).mean(),
        lambda x, target: F.cross_entropy(x[:, :, None], target[:, None]),
        lambda x, target: F.cross_entropy(x[0], target[0]),
        lambda x, target: F.cross_entropy(x.to(torch.float64), target),
    ],
)
def test_losses_beside_cross_entropy(loss):
    check(loss, *scores(6, 9))


def test_an_index_out_of_bounds_fails():
    x, target = scores(6, 9)
    target[2] = 9
    with pytest.raises(NEFFExecutionError, match="index 9 is out of bounds"):
        step(lambda x, target: F.cross_entropy(x, target), (x, target), "neuron", compile=True)


def test_a_graph_with_cross_entropy_runs_eagerly(monkeypatch: pytest.MonkeyPatch):
    """Its operators have an implementation by others."""

    def refuse(self, layouts):
        raise LoweringError("not this time")

    monkeypatch.setenv("TORCH_NEURONX_DISABLE_FALLBACK_EXECUTION", "0")
    monkeypatch.setattr(CompiledGraph, "_prepare", refuse)
    check(lambda x, target: F.cross_entropy((x * 2).float(), target), *scores(6, 9, torch.bfloat16))


# -- slices of a linear layer's rows ----------------------------------------------------------------


@pytest.mark.parametrize(
    "index, moved",
    [
        ((slice(None), slice(None, -1)), True),
        ((slice(1, None),), True),
        (slice(0, 3, 2), True),
        ((slice(None), slice(None), slice(1, 3)), False),
        ((0,), False),
        ((..., slice(0, 2)), False),
        ((slice(None), None), False),
    ],
)
def test_rows_are_sliced_before_a_linear_layer(programs, index, moved):
    x, weight, bias = torch.randn(4, 6, 8), torch.randn(5, 8), torch.randn(5)
    check(lambda x, w, b: F.linear(x, w, b)[index].square(), x, weight, bias, rtol=1e-5, atol=1e-5)
    (graph,) = programs("forward", "graph.txt")
    assert ("f32[24, 5]" not in graph) == moved


def test_a_linear_layer_whose_rows_are_read_twice_stays_whole():
    x, weight = torch.randn(4, 6, 8), torch.randn(5, 8)
    check(lambda x, w: (y := F.linear(x, w))[:, 1:] * y[:, :-1], x, weight, rtol=1e-5, atol=1e-5)


# -- memory of saved tensors -------------------------------------------------------------------------

UNDEFINED = "neuroncore.undefined"
LARGE = (512, 768)  # more than 1 MiB


def test_saved_tensors_lend_their_memory(programs):
    x, w = torch.randn(LARGE), torch.randn(768, 768) / 32

    def function(x, w):
        for _ in range(3):
            x = torch.tanh(x @ w)
        return x.exp().sum()

    expected = step(function, (x, w), "cpu")
    function = torch.compile(function, backend="neuron", fullgraph=True, dynamic=False)
    for _ in range(3):  # in new memory, and in memory of the steps before
        assert_close(step(function, (x, w), "neuron"), expected, rtol=1e-4, atol=1e-4)
    (program,) = programs("backward", "program.mlir")
    assert UNDEFINED in program


def test_what_others_hold_is_not_lent(programs):
    """Inputs, results and gradients stay as they are, though they are saved for the backward pass."""
    x, w = torch.randn(LARGE).to("neuron").requires_grad_(), torch.randn(LARGE).to("neuron").requires_grad_()
    before = [x.detach().cpu(), w.detach().cpu()]

    @torch.compile(backend="neuron", fullgraph=True, dynamic=False)
    def function(x, w):
        y = torch.exp(x * w)
        return y.sum(), y

    loss, y = function(x, w)
    held = y.detach().cpu()
    loss.backward()
    assert_close([x.detach().cpu(), w.detach().cpu()], before, rtol=0, atol=0)
    assert_close(y.detach().cpu(), held, rtol=0, atol=0)
    assert_close(x.grad.cpu(), before[1] * held)
    (program,) = programs("backward", "program.mlir")
    assert UNDEFINED not in program


def test_no_memory_is_lent_when_donation_is_off(programs):
    def function(x):
        return torch.tanh(torch.tanh(x)).sum()

    with torch._functorch.config.patch(donated_buffer=False):
        x = torch.randn(LARGE).to("neuron").requires_grad_()
        loss = torch.compile(function, backend="neuron", fullgraph=True, dynamic=False)(x)
        loss.backward(retain_graph=True)
        first = x.grad.cpu()
        loss.backward()
    assert_close(x.grad.cpu(), 2 * first)
    assert_close(first, step(function, [x.detach().cpu()], "cpu")[1][0])
    (program,) = programs("backward", "program.mlir")
    assert UNDEFINED not in program


def test_parts_of_a_projection_are_saved_as_views(programs):
    """One backward program: what is saved has the layout that the trace foresaw."""
    x, w = torch.randn(2, 5, 8), torch.randn(8, 24)

    def function(x, w):
        q, k, v = (part.view(2, 5, 2, 4).transpose(1, 2) for part in (x @ w).split(8, dim=2))
        return F.scaled_dot_product_attention(q, k, v)

    check(function, x, w, rtol=1e-4, atol=1e-5)
    assert len(programs("backward", "program.mlir")) == 1


@pytest.mark.parametrize("take", [lambda y: y.unbind(1), lambda y: y.split([1, 3], 1), lambda y: y.chunk(2, 1)])
def test_parts_of_a_result_are_returned(take):
    check(lambda x: tuple(part * 1 for part in take(x * 2)), torch.randn(3, 4))
    expected = [part.clone() for part in take(torch.ones(3, 4) * 2)]
    x = torch.ones(3, 4, device="neuron")
    actual = torch.compile(lambda x: take(x * 2), backend="neuron", fullgraph=True)(x)
    assert_close([part.cpu() for part in actual], expected)
    assert_close(
        [part.cpu() for part in torch.compile(take, backend="neuron", fullgraph=True)(x)], [e / 2 for e in expected]
    )


# -- a table of embeddings that is the output layer's weight -----------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("options", [{}, {"padding_idx": 3}, {"scale_grad_by_freq": True}])
def test_gradient_of_a_tied_embedding(programs, dtype, options):
    """Rows that are looked up many times are rounded once."""
    weight = torch.randn(11, 6).to(dtype)
    indices = torch.tensor([[3, 1, 10, 3], [1, 1, 1, 0]]).repeat(1, 25)

    def function(weight, indices):
        return F.linear(F.embedding(indices, weight, **options).tanh(), weight).float().square().mean()

    # The CPU adds up half types rounding every time: its float32 result is the one to compare with.
    _, (expected,) = step(function, (weight.float(), indices), "cpu")
    _, (actual,) = step(function, (weight, indices), "neuron", compile=True)
    tolerance = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 2e-3}[dtype] * expected.abs().max().item()
    assert_close(actual.float(), expected, rtol=0, atol=tolerance)
    (graph,) = programs("backward", "graph.txt")
    assert "add_embedding_gradient" in graph
