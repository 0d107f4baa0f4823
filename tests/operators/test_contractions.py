# SPDX-License-Identifier: Apache-2.0
"""Matrix products."""

from __future__ import annotations

import math

import pytest
import torch
from case import COMPLEX, INTEGERS, LAYOUTS, Case, check, check_on_lesser_processor, compare, parametrize, sample

aten = torch.ops.aten

NUMBERS = (torch.float32, torch.bfloat16, torch.float64, torch.float16, *INTEGERS, *COMPLEX)
TWO = NUMBERS[:2]
# Half types round once at the end, and the order of additions is open.
CLOSE = {"rtol": 2e-2, "atol": 5e-2}


def on(op, *shapes, dtypes=TWO, id="", layouts=(), **kwargs) -> Case:
    def make(dtype):
        return tuple(sample(*shape, dtype=dtype, seed=seed) for seed, shape in enumerate(shapes)), kwargs

    return Case(op, make, dtypes, id, layouts=layouts, strides=False, **CLOSE)


ADDED = {
    aten.addmm.default: ((5, 3), (5, 7), (7, 3)),
    aten.addmv.default: ((5,), (5, 7), (7,)),
    aten.baddbmm.default: ((4, 5, 3), (4, 5, 7), (4, 7, 3)),
    aten.addbmm.default: ((5, 3), (4, 5, 7), (4, 7, 3)),
    aten.addr.default: ((5, 3), (5,), (3,)),
}
CASES = [
    on(aten.mm.default, (5, 7), (7, 3), dtypes=NUMBERS, layouts=LAYOUTS),
    on(aten.mm.default, (5, 0), (0, 3), id="no-inner"),
    on(aten.mm.default, (0, 7), (7, 3), id="empty"),
    on(aten.bmm.default, (4, 5, 7), (4, 7, 3), dtypes=NUMBERS, layouts=LAYOUTS),
    on(aten.bmm.default, (2, 5, 0), (2, 0, 3), id="no-inner"),
    on(aten.mv.default, (5, 7), (7,), dtypes=NUMBERS),
    on(aten.dot.default, (7,), (7,), dtypes=NUMBERS),
    on(aten.dot.default, (0,), (0,), id="empty"),
    on(aten.vdot.default, (7,), (7,), dtypes=(torch.complex64, torch.float32)),
    *(on(op, *shapes, dtypes=NUMBERS) for op, shapes in ADDED.items()),
    *(on(op, *shapes, beta=2, alpha=3, dtypes=(*TWO, torch.int64), id="scaled") for op, shapes in ADDED.items()),
    *(on(op, *shapes, beta=0.5, alpha=-1.5, id="fractions") for op, shapes in ADDED.items()),
    on(aten.addmm.default, (3,), (5, 7), (7, 3), dtypes=NUMBERS, layouts=LAYOUTS, id="bias"),
    on(aten.addmm.default, (5, 1), (5, 7), (7, 3), id="column"),
    on(aten.baddbmm.default, (1, 1, 3), (4, 5, 7), (4, 7, 3), id="bias"),
    *(on(aten.linear.default, shape, (4, 7), (4,), id=f"{len(shape)}-D") for shape in ((7,), (5, 7), (2, 3, 5, 7))),
    on(aten.linear.default, (5, 7), (4, 7), dtypes=NUMBERS, layouts=LAYOUTS, id="no-bias"),
    on(aten.linear.default, (5, 7), (7,), id="vector"),
]


@parametrize(CASES)
def test_products(case, dtype, variant):
    check(case, dtype, variant)


MATMUL_SHAPES = [
    ((7,), (7,)),
    ((5, 7), (7,)),
    ((7,), (7, 3)),
    ((5, 7), (7, 3)),
    ((2, 5, 7), (7,)),
    ((7,), (2, 7, 3)),
    ((2, 5, 7), (7, 3)),
    ((5, 7), (2, 7, 3)),
    ((2, 5, 7), (2, 7, 3)),
    ((2, 5, 7), (1, 7, 3)),
    ((1, 5, 7), (2, 7, 3)),
    ((2, 1, 5, 7), (1, 3, 7, 4)),
    ((3, 5, 7), (2, 3, 7, 4)),
    ((1, 1, 5, 7), (3, 7, 2)),
    ((2, 0, 7), (7, 3)),
    ((2, 5, 0), (2, 0, 3)),
    ((0,), (0,)),
]


@pytest.mark.parametrize("shapes", MATMUL_SHAPES, ids=str)
def test_matmul(shapes):
    for dtype in (torch.float32, torch.bfloat16, torch.int64):
        x, y = (sample(*shape, dtype=dtype, seed=seed) for seed, shape in enumerate(shapes))
        compare(torch.matmul(x.to("neuron"), y.to("neuron")), torch.matmul(x, y), strides=False, **CLOSE)


# Large enough for the host kernels: a row or some by a matrix of odd size, and many.
@pytest.mark.parametrize("dtype", TWO, ids=str)
@pytest.mark.parametrize("transposed", (True, False), ids=("transposed", "plain"))
@pytest.mark.parametrize("rows", (1, 2, 3, 4, 7, 8, 9, 300))
def test_large_products(rows, transposed, dtype):
    for columns, inner in ((257, 1031), (1290, 515), (2049, 33)) if rows < 10 else ((1290, 901),):
        x = sample(rows, inner, dtype=dtype)
        y = (
            sample(columns, inner, dtype=dtype, seed=1).t()
            if transposed
            else sample(inner, columns, dtype=dtype, seed=1)
        )
        bias = sample(columns, dtype=dtype, seed=2)
        scale = inner**0.5  # of the sums, and of their errors
        product, with_bias = x.double() @ y.double(), x.double() @ y.double() + bias.double()
        x_neuron, y_neuron, bias_neuron = x.to("neuron"), y.to("neuron"), bias.to("neuron")
        close = {"rtol": 1e-2, "atol": 1e-2} if dtype == torch.bfloat16 else {"rtol": 1e-5, "atol": 2e-5 * scale}
        for operand in (x_neuron, x_neuron.t().contiguous().t()):
            torch.testing.assert_close((operand @ y_neuron).cpu().double(), product, **close)
        torch.testing.assert_close(torch.addmm(bias_neuron, x_neuron, y_neuron).cpu().double(), with_bias, **close)
        if rows == 1:
            torch.testing.assert_close(torch.mv(y_neuron.t(), x_neuron[0]).cpu().double(), product[0], **close)
            torch.testing.assert_close(
                torch.addmv(bias_neuron, y_neuron.t(), x_neuron[0]).cpu().double(), with_bias[0], **close
            )


# What tiles of 16 lines and 32 inner elements do not divide, nor blocks of 256 inner elements and columns.
LARGE_SHAPES = [
    (1100, 501, 601),
    (129, 2051, 1290),
    (523, 513, 1025),
    (2049, 4099, 33),
    (2049, 2050, 65),
    (4099, 65, 2100),
]


def matrix(height, width, transposed, seed):
    return sample(width, height, seed=seed).t() if transposed else sample(height, width, seed=seed)


@pytest.mark.parametrize("y_transposed", (True, False), ids=("y transposed", "y plain"))
@pytest.mark.parametrize("x_transposed", (True, False), ids=("x transposed", "x plain"))
@pytest.mark.parametrize("shape", LARGE_SHAPES, ids=str)
def test_large_products_are_as_exact_as_float32(shape, x_transposed, y_transposed):
    rows, columns, inner = shape
    x, y = matrix(rows, inner, x_transposed, 0), matrix(inner, columns, y_transposed, 1)
    bias = sample(columns, seed=2)
    for actual, added in (
        (x.to("neuron") @ y.to("neuron"), 0),
        (torch.addmm(bias.to("neuron"), x.to("neuron"), y.to("neuron")), bias.double()),
    ):
        errors = actual.cpu().double() - (x.double() @ y.double() + added)
        scaled = errors / (x.double().abs() @ y.double().abs() + abs(added))
        assert scaled.abs().max() < 2**-20
        assert scaled.square().mean().sqrt() < 2**-24


@pytest.mark.parametrize("y_transposed", (True, False), ids=("y transposed", "y plain"))
@pytest.mark.parametrize("x_transposed", (True, False), ids=("x transposed", "x plain"))
def test_large_products_keep_every_bit_of_float32(x_transposed, y_transposed):
    y = torch.eye(600).flip(0)
    y_neuron = y.t().contiguous().to("neuron").t() if y_transposed else y.to("neuron")
    for scale in (1.0, 2.0**100, 2.0**-50, 2.0**-90, 3.0e38 / 6):
        x = matrix(1000, 600, x_transposed, 0) * scale
        assert torch.equal((x.to("neuron") @ y_neuron).cpu(), x.flip(1))


def _with(value, row=523, column=700):
    x = sample(1000, 901)
    x[row, column] = value
    return x


# Elements that three bfloat16 do not add up to, or whose products they do not.
EXTREMES = {
    "infinity": lambda: _with(math.inf),
    "infinity by zero": lambda: _with(math.inf, column=0),
    "NaN": lambda: _with(math.nan),
    "the largest number": lambda: _with(torch.finfo(torch.float32).max),
    "sums beyond the largest number": lambda: _with(3e38).mul(100),
    "a row of tiny numbers": lambda: torch.cat([sample(999, 901), sample(1, 901) * 1e-33]),
    "small numbers": lambda: sample(1000, 901) * 1e-16,
    "tiny numbers": lambda: sample(1000, 901) * 1e-30,
    "denormal numbers": lambda: sample(1000, 901) * 1e-40,
    "zeros": lambda: torch.zeros(1000, 901),
}


@pytest.mark.parametrize("side", ("left", "right"))
@pytest.mark.parametrize("name", EXTREMES)
def test_large_products_of_extreme_numbers(name, side):
    x, y = EXTREMES[name](), sample(901, 515, seed=1)
    y[0] = 0
    for scale in (1.0, 1e-6):
        left, right = (x, y * scale) if side == "left" else ((y * scale).t(), x.t())
        actual = (left.to("neuron") @ right.to("neuron")).cpu()
        expected = left.double() @ right.double()
        errors = (actual.double() - expected.float().double()).abs()
        scales = left.double().abs() @ right.double().abs()
        finite = expected.float().isfinite()
        # A result is wrong by some of its last bits, or by products below the least normal number.
        lost = 901 * torch.finfo(torch.float32).tiny
        assert (errors[finite] <= scales[finite] * 2**-20 + lost).all()
        torch.testing.assert_close(actual[~finite], expected.float()[~finite], equal_nan=True)


# A processor without AVX-512, or with AVX-512 without fast products of bfloat16.
@pytest.mark.parametrize("setting", ("ATEN_CPU_CAPABILITY=avx2", "ONEDNN_MAX_CPU_ISA=AVX512_CORE"))
def test_large_products_of_lesser_processors(setting):
    check_on_lesser_processor(setting, __file__, "test_large_products", "test_large_products_are_as_exact_as_float32")


def test_large_products_of_a_batch_of_rows():
    for shape in ((2, 3, 515), (1, 1, 515), (515,), (40, 10, 515)):
        x, weight, bias = sample(*shape), sample(1290, 515, seed=1), sample(1290, seed=2)
        actual = torch.nn.functional.linear(x.to("neuron"), weight.to("neuron"), bias.to("neuron"))
        torch.testing.assert_close(actual.cpu(), torch.nn.functional.linear(x, weight, bias), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("dtype", TWO, ids=str)
@pytest.mark.parametrize("transposed", (True, False), ids=("transposed", "plain"))
def test_few_rows_keep_infinities_and_nan(transposed, dtype):
    x, y = sample(3, 515, dtype=dtype), sample(515, 301, dtype=dtype, seed=1)
    x[1, 514], y[514, 300], y[3, 7] = math.inf, -math.inf, math.nan
    lies = y.t().contiguous().to("neuron").t() if transposed else y.to("neuron")
    torch.testing.assert_close((x.to("neuron") @ lies).cpu(), x @ y, equal_nan=True, **CLOSE)


def test_beta_of_zero_ignores_the_addend():
    addend = torch.full((5, 3), math.nan)
    x, y = sample(5, 7), sample(7, 3)
    actual = torch.addmm(addend.to("neuron"), x.to("neuron"), y.to("neuron"), beta=0)
    torch.testing.assert_close(actual.cpu(), x @ y)


def test_half_types_round_once():
    """4096 products of 1 and 1: a bfloat16 accumulator would stop at 256."""
    ones = torch.ones(2, 4096, dtype=torch.bfloat16, device="neuron")
    bias = torch.ones(2, dtype=torch.bfloat16, device="neuron")
    assert torch.nn.functional.linear(ones, ones).cpu().unique().tolist() == [4096.0]
    assert torch.nn.functional.linear(ones[:, :256], ones[:, :256], bias).cpu().unique().tolist() == [257.0 // 2 * 2]


def test_long_dot_products_stay_exact():
    x = sample(1_000_000, low=0)
    torch.testing.assert_close(
        x.to("neuron").dot(x.to("neuron")).cpu().double(), x.double().dot(x.double()), rtol=1e-6, atol=0
    )


@pytest.mark.parametrize("bias", (True, False))
def test_gradients_of_linear(bias):
    results = []
    for device in ("cpu", "neuron"):
        leaves = [
            sample(*shape, seed=seed).to(device).requires_grad_()
            for seed, shape in enumerate(((2, 5, 7), (4, 7), (4,)))
        ]
        output = torch.nn.functional.linear(*leaves[: 3 if bias else 2])
        output.backward(sample(2, 5, 4, seed=9).to(device))
        results.append([leaf.grad.cpu() for leaf in leaves if leaf.grad is not None])
    torch.testing.assert_close(results[1], results[0])


def test_einsum():
    x, y = sample(2, 3, 4), sample(5, 4, 3, seed=1)
    expected = torch.einsum("bij,cji->bc", x, y)
    torch.testing.assert_close(torch.einsum("bij,cji->bc", x.to("neuron"), y.to("neuron")).cpu(), expected)
