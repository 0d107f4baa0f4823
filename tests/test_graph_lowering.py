# SPDX-License-Identifier: Apache-2.0
"""FX graphs as StableHLO: what is refused, and with what words. Their results are tested through torch.compile."""

from __future__ import annotations

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from torch_neuronx.lowering import LoweringError, load_rules
from torch_neuronx.lowering.graph import decompose, lower_graph
from torch_neuronx.stablehlo import Builder

aten = torch.ops.aten


@pytest.fixture(autouse=True, scope="module")
def rules():
    load_rules()


def text_of(function, *operands: torch.Tensor, mode: str = "fake") -> str:
    graph = make_fx(function, tracing_mode=mode)(*operands)
    b = Builder()
    values = lower_graph(b, graph, [b.input(x.shape, x.dtype) for x in operands])
    return b.finish([v for v in values if v is not None]).text


def test_one_operation_a_node():
    text = text_of(lambda x, y: (torch.tanh(x) @ y, None, x.t()), torch.ones(2, 3), torch.ones(3, 4))
    assert text.count("stablehlo.tanh") == 1
    assert text.count("stablehlo.dot_general") == 1
    assert text.rstrip().endswith("}") and "tensor<3x2xf32>" in text


def test_lists_and_tuples_are_taken_apart():
    def function(x):
        first, second = x.split(2)
        values, positions = second.sort(1)
        return first + values, positions

    text = text_of(function, torch.ones(4, 3))
    assert "stablehlo.sort" in text and "tensor<2x3xi64>" in text


def test_constants_of_the_graph():
    text = text_of(lambda x: x + torch.tensor([1.0, 2.0]), torch.ones(2))
    assert "[1.0, 2.0]" in text
    with pytest.raises(LoweringError, match="has 5000 elements"):
        text_of(lambda x: x + torch.tensor([1.0] * 5000), torch.ones(5000))


def test_as_strided_counts_in_memory():
    """Of a transposed matrix: the first column of its memory is the first row of its elements."""
    x = torch.ones(4, 5).t()
    assert "stablehlo.transpose" in text_of(lambda x: torch.as_strided(x + 0, (4,), (5,)), x)
    with pytest.raises(LoweringError, match=r"as_strided.*contiguous"):
        text_of(lambda x: torch.as_strided(x[1:], (2,), (1,)), torch.ones(4, 5))


@pytest.mark.parametrize(
    "function, reason",
    [
        (lambda x: x * 2, r"aten\.mul\.Tensor: dimension 0 has the symbolic size s\d+"),
        (lambda x: x.nonzero(), r"aten\.nonzero\.default: dimension 0 has the symbolic size u0"),
    ],
)
def test_sizes_must_be_known(function, reason):
    with pytest.raises(LoweringError, match=reason):
        text_of(function, torch.ones(4, 5), mode="symbolic")


def test_an_operator_without_rule_is_named():
    with pytest.raises(LoweringError, match=r"aten\.linalg_eig\.default has neither a lowering rule nor"):
        text_of(torch.linalg.eig, torch.eye(2))


def meta(*shape: int) -> torch.Tensor:
    return torch.empty(shape, device="meta")


def test_decompositions_are_made_of_rules():
    graph = decompose(aten.block_diag.default, [[meta(2, 3), meta(1, 4)]], {})
    targets = {node.target for node in graph.graph.nodes if node.op == "call_function"}
    assert targets and targets <= set(load_rules())


def test_what_has_no_decomposition():
    assert decompose(aten.linalg_eig.default, [meta(2, 2)], {}) is None
    assert decompose(aten.nonzero.default, [meta(2, 2)], {}) is None
