# SPDX-License-Identifier: Apache-2.0
"""Products of groups: `torch.nn.functional.grouped_mm`, against one product a group on the CPU."""

from __future__ import annotations

import pytest
import torch
from case import sample
from torch.nn.functional import grouped_mm
from torch.testing import assert_close

import torch_neuronx
from torch_neuronx.stablehlo import Builder

GROUPS, ROWS, INNER, COLUMNS = 4, 12, 16, 8
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
CLOSE = {"rtol": 2e-2, "atol": 5e-2}
# Empty groups among them, and rows behind the last.
ENDS = [[3, 4, 9, 12], [0, 5, 5, 12], [2, 3, 4, 7], [0, 0, 0, 0]]


def by_hand(x, y, ends):
    """In float64, so that nothing depends on the order of additions."""
    x, y = x.double(), y.double()
    spans = list(zip([0, *ends[:-1]], ends, strict=True))
    if x.ndim == 2 and y.ndim == 2:
        return torch.stack([x[:, begin:end] @ y[begin:end] for begin, end in spans])
    result = x.new_zeros(x.shape[-2], y.shape[-1])
    for group, (begin, end) in enumerate(spans):
        if y.ndim == 3:
            result[begin:end] = x[begin:end] @ y[group]
        else:
            result[:, begin:end] = x[group] @ y[:, begin:end]
    return result


def operands(kind, dtype):
    if kind == "rows":
        return sample(ROWS, INNER, dtype=dtype), sample(GROUPS, INNER, COLUMNS, dtype=dtype, seed=1)
    if kind == "columns":
        return sample(GROUPS, COLUMNS, INNER, dtype=dtype), sample(INNER, ROWS, dtype=dtype, seed=1)
    return sample(COLUMNS, ROWS, dtype=dtype), sample(ROWS, INNER, dtype=dtype, seed=1)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("ends", ENDS, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", ["rows", "columns", "inner"])
def test_grouped_products(kind, dtype, ends, transposed):
    x, y = operands(kind, dtype)
    on_device = [t.to("neuron") for t in (x, y)]
    if transposed:
        on_device = [t.mT.contiguous().mT for t in on_device]
    actual = grouped_mm(*on_device, offs=torch.tensor(ends, dtype=torch.int32, device="neuron"))
    assert_close(actual.cpu(), by_hand(x, y, ends).to(dtype), **CLOSE)


@pytest.mark.parametrize("kind", ["rows", "columns", "inner"])
def test_the_decomposition(kind, monkeypatch):
    """What a target without the kernel compiles."""
    plain = Builder.composite

    def composite(self, name, operands, types, decomposition, config=""):
        self.kernels = self.kernels - {"neuron.grouped_matmul"}
        return plain(self, name, operands, types, decomposition, config)

    monkeypatch.setattr(Builder, "composite", composite)
    # Not the shapes of the other tests, whose programs are known already.
    x, y = (torch.cat([t, t], dim) for t, dim in zip(operands(kind, torch.float32), (-1, -2), strict=True))
    ends = [3, 4, 9, 24] if kind == "inner" else [3, 4, 4, 10]
    actual = grouped_mm(x.to("neuron"), y.to("neuron"), offs=torch.tensor(ends, dtype=torch.int32, device="neuron"))
    assert_close(actual.cpu(), by_hand(x, y, ends).float(), **CLOSE)


def test_batches_without_offsets():
    x, y = sample(4, 8, 16), sample(4, 16, 8, seed=1)
    assert_close(grouped_mm(x.to("neuron"), y.to("neuron")).cpu(), x @ y)


def test_gradients():
    x, y = operands("rows", torch.float32)
    ends = torch.tensor(ENDS[0], dtype=torch.int32)
    gradients = []
    for device in ("cpu", "neuron"):
        leaves = [t.clone().to(device).requires_grad_() for t in (x, y)]
        grouped_mm(*leaves, offs=ends.to(device)).square().sum().backward()
        gradients.append([leaf.grad.cpu() for leaf in leaves])
    assert_close(gradients[1], gradients[0])


def test_compiled():
    """PyTorch traces it for bfloat16 only."""
    x, y = operands("rows", torch.bfloat16)
    ends = torch.tensor(ENDS[0], dtype=torch.int32)
    function = torch.compile(lambda x, y, e: grouped_mm(x, y, offs=e) * 2, backend="neuron", fullgraph=True)
    actual = function(*(t.to("neuron") for t in (x, y, ends)))
    assert_close(actual.cpu(), (by_hand(x, y, ENDS[0]) * 2).bfloat16(), **CLOSE)


@pytest.mark.parametrize("ends", [[3, 2, 9, 12], [3, 4, 9, 13], [-1, 4, 9, 12]], ids=str)
def test_ends_that_do_not_grow_or_exceed_the_rows(ends):
    x, y = (t.to("neuron") for t in operands("rows", torch.float32))
    grouped_mm(x, y, offs=torch.tensor(ends, dtype=torch.int32, device="neuron"))
    with pytest.raises(RuntimeError, match=r"_grouped_mm.*expected ends of groups that grow up to 12"):
        torch.neuron.synchronize()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda x, y, e: (x, y.double(), e), "one dtype"),
        (lambda x, y, e: (x, y[:, :8], e), "differ"),
        (lambda x, y, e: (x, y[:3], e), "groups"),
        (lambda x, y, e: (x, y, e.long()), "int32"),
        (lambda x, y, e: (x, y, None), "expected offs"),
    ],
)
def test_operands_that_do_not_fit(change, words):
    x, y = (t.to("neuron") for t in operands("rows", torch.float32))
    x, y, ends = change(x, y, torch.tensor(ENDS[0], dtype=torch.int32, device="neuron"))
    with pytest.raises(RuntimeError, match=words):
        torch.ops.aten._grouped_mm(x, y, ends)


def test_experts_of_transformers_in_a_graph():
    """In float32 they come as an operator of that library, for which there are rules."""
    from transformers.integrations import moe  # noqa: F401

    x, y = operands("rows", torch.float32)
    ends = torch.tensor(ENDS[0])
    fallback = torch.ops.transformers.grouped_mm_fallback
    gradients = []
    for device, backend in (("cpu", "eager"), ("neuron", "neuron")):
        leaves = [t.clone().to(device).requires_grad_() for t in (x, y)]
        function = torch.compile(lambda x, y, e: fallback(x, y, e).square().sum(), backend=backend, fullgraph=True)
        function(*leaves, ends.to(device)).backward()
        gradients.append([leaf.grad.cpu() for leaf in leaves])
    assert_close(gradients[1], gradients[0])


def test_nothing_runs_on_the_cpu():
    x, y = (t.to("neuron") for t in operands("rows", torch.float32))
    torch_neuronx.clear_op_tracking()
    grouped_mm(x, y, offs=torch.tensor(ENDS[0], dtype=torch.int32, device="neuron"))
    assert torch_neuronx.get_fallback_ops() == []
