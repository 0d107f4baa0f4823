# SPDX-License-Identifier: Apache-2.0
"""Short 1-D operands: one program serves all their lengths, and nothing beyond a length is seen or touched."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.testing import assert_close

from torch_neuronx import metrics

DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.uint8, torch.float64]

Operator = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

POINTWISE: dict[str, Operator] = {
    "add": lambda x, y: x + y,
    "scaled": lambda x, y: torch.add(x, y, alpha=2),
    "number": lambda x, y: x * 1000,
    "reciprocal": lambda x, y: torch.reciprocal(x),
    "where": lambda x, y: torch.where(x > y, x, y),
    "compare": lambda x, y: x <= y,
    "exp": lambda x, y: torch.exp(x),
    "floor": lambda x, y: torch.div(x, y, rounding_mode="floor"),
    "remainder": lambda x, y: torch.remainder(x, y),
    "clamp": lambda x, y: x.clamp(1, 4),
    "pow": lambda x, y: x**2,
}


def programs() -> int:
    """Programs that this process has asked the compiler or the cache for."""
    torch.neuron.synchronize()
    return metrics.get_counter_value("CompilationCache.InMemoryMisses") or 0


def numbers(length: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    """1 ... 7, which every dtype holds and every operator takes."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(1, 8, (length,), generator=generator).to(dtype)


def most(dtype: torch.dtype) -> int:
    """The longest tensor of the class: 256 bytes."""
    return 256 // dtype.itemsize


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", POINTWISE)
def test_pointwise(name: str, dtype: torch.dtype) -> None:
    operator = POINTWISE[name]
    x, y = numbers(2, dtype), numbers(2, dtype, seed=1)
    operator(x.to("neuron"), y.to("neuron"))
    before = programs()
    for length in [1, 3, 4, 5, 7, 16, 31, most(dtype) - 1, most(dtype)]:
        x, y = numbers(length, dtype), numbers(length, dtype, seed=1)
        got, expected = operator(x.to("neuron"), y.to("neuron")), operator(x, y)
        assert got.stride() == (1,)
        assert got.untyped_storage().nbytes() == expected.untyped_storage().nbytes()
        assert_close(got.cpu(), expected)
    assert programs() == before
    x, y = numbers(most(dtype) + 1, dtype), numbers(most(dtype) + 1, dtype, seed=1)
    assert_close(operator(x.to("neuron"), y.to("neuron")).cpu(), operator(x, y))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_cat(dtype: torch.dtype) -> None:
    torch.cat([numbers(2, dtype).to("neuron"), numbers(1, dtype).to("neuron")])
    before = programs()
    for lengths in [(1, 1), (3, 1), (1, 9), (most(dtype) - 1, 1), (1, most(dtype) - 1), (most(dtype) // 2,) * 2]:
        parts = [numbers(n, dtype, seed=n) for n in lengths]
        got = torch.cat([part.to("neuron") for part in parts])
        assert got.untyped_storage().nbytes() == sum(lengths) * dtype.itemsize
        assert_close(got.cpu(), torch.cat(parts), rtol=0, atol=0)
    assert programs() == before
    parts = [numbers(n, dtype, seed=n) for n in (most(dtype), 1)]
    assert_close(torch.cat([part.to("neuron") for part in parts]).cpu(), torch.cat(parts), rtol=0, atol=0)


def test_cat_of_flags_and_complex_numbers() -> None:
    for lengths in [(2, 3, 4), (3, 1, 11)]:
        flags = [numbers(n, torch.int64, seed=n) > 3 for n in lengths]
        assert_close(torch.cat([part.to("neuron") for part in flags]).cpu(), torch.cat(flags))
        pairs = [torch.complex(numbers(n, torch.float32), numbers(n, torch.float32, seed=1)) for n in lengths]
        assert_close(torch.cat([part.to("neuron") for part in pairs]).cpu(), torch.cat(pairs))
        assert_close((pairs[0].to("neuron") * 2).cpu(), pairs[0] * 2)


def test_cat_of_several_dtypes() -> None:
    for lengths in [(2, 3, 4), (20, 1, 11), (5, 24, 3)]:
        parts = [numbers(n, d) for n, d in zip(lengths, (torch.int32, torch.float16, torch.int64), strict=True)]
        assert_close(torch.cat([part.to("neuron") for part in parts]).cpu(), torch.cat(parts))
    narrow = [numbers(200, torch.uint8), numbers(56, torch.int8)]  # a result of twice the window
    got = torch.cat([part.to("neuron") for part in narrow])
    assert_close(got.cpu(), torch.cat(narrow))
    assert_close((got * 3).cpu(), torch.cat(narrow) * 3)


def test_results_wider_than_their_operands() -> None:
    for length in (3, 40, 256):
        x = numbers(length, torch.uint8)
        root = x.to("neuron").sqrt()
        assert_close(root.cpu(), x.sqrt())
        assert_close((root + 1).cpu(), x.sqrt() + 1)
        flags = (x > 3).to("neuron")
        assert_close((flags * 5).cpu(), (x > 3) * 5)


def test_operands_of_several_dtypes() -> None:
    for length in (2, 9, 32, 33, 64):
        condition = numbers(length, torch.int64) > 3
        x, y = numbers(length, torch.float32), numbers(length, torch.int64, seed=1)
        got = torch.where(condition.to("neuron"), x.to("neuron"), y.to("neuron"))
        assert_close(got.cpu(), torch.where(condition, x, y))


def test_two_results() -> None:
    for length in (2, 5, 11):
        x = numbers(length, torch.float32) / 3
        for got, expected in zip(torch.frexp(x.to("neuron")), torch.frexp(x), strict=True):
            assert_close(got.cpu(), expected)


def test_operands_of_no_dimension() -> None:
    scale = torch.tensor(0.5)
    for length in (2, 5, 64):
        x = numbers(length, torch.float32)
        assert_close((x.to("neuron") * scale.to("neuron")).cpu(), x * scale)
        assert_close((scale.to("neuron") - x.to("neuron")).cpu(), scale - x)


def test_lengths_that_differ_broadcast_or_fail() -> None:
    x, y = numbers(5, torch.float32), numbers(1, torch.float32)
    assert_close((x.to("neuron") + y.to("neuron")).cpu(), x + y)
    with pytest.raises(RuntimeError, match="broadcast"):
        x.to("neuron") + numbers(4, torch.float32).to("neuron")


def test_nothing_is_no_length() -> None:
    nothing, x = torch.empty(0, device="neuron"), numbers(3, torch.float32)
    assert (nothing + 1).shape == (0,)
    assert (nothing < nothing).shape == (0,)
    assert torch.cat([nothing, nothing]).shape == (0,)
    assert_close(torch.cat([nothing, x.to("neuron")]).cpu(), x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.uint8], ids=str)
def test_views_at_every_offset(dtype: torch.dtype) -> None:
    """Also where the memory ends soon after the view."""
    parent = numbers(2 * most(dtype) + 1, dtype)
    device = parent.to("neuron")
    aligned = 64 // dtype.itemsize
    for start in {0, 1, 3, aligned, aligned + 1, most(dtype), 2 * most(dtype) - aligned, 2 * most(dtype) - 3}:
        for length in (1, 2, 5):
            view, expected = device[start : start + length], parent[start : start + length]
            assert_close((view + view).cpu(), expected + expected)
            assert_close(torch.cat([view, view]).cpu(), torch.cat([expected, expected]))
    assert_close(device.cpu(), parent)


@pytest.mark.parametrize("name", [*POINTWISE, "gcd"])
def test_neighbours_of_any_value_do_no_harm(name: str) -> None:
    operator = POINTWISE.get(name, torch.gcd)
    least = torch.iinfo(torch.int64).min
    parent = torch.cat([numbers(3, torch.int64), torch.tensor([0, -1, least, 0, least, -1]).repeat(5)])
    other = parent.flip(0).roll(3)
    x, y = parent.to("neuron"), other.to("neuron")
    assert_close(operator(x[:3], y[:3]).cpu(), operator(parent[:3], other[:3]))
    if name == "gcd":
        return
    parent = torch.cat([numbers(3, torch.float32), torch.tensor([0.0, float("nan"), float("inf"), -1e38]).repeat(16)])
    x = parent.to("neuron")
    assert_close(operator(x[:3], x[:3]).cpu(), operator(parent[:3], parent[:3]))


def test_spaced_views() -> None:
    parent = numbers(24, torch.float32)
    for step in (2, 3):
        assert_close((parent.to("neuron")[::step] * 2).cpu(), parent[::step] * 2)
    row = numbers(1, torch.float32)
    assert_close((row.to("neuron").expand(6) + parent.to("neuron")[:6]).cpu(), row.expand(6) + parent[:6])


def test_updates_leave_the_neighbours_alone() -> None:
    parent = numbers(48, torch.float32)
    device = parent.to("neuron")
    for tensor in (parent, device):
        tensor[16:19].mul_(3)
        tensor[20:23].add_(tensor[0:3])
        torch.add(tensor[0:4], 1, out=tensor[32:36])
        tensor[40:42] = tensor[2:4] * 2
    assert_close(device.cpu(), parent)


def test_a_result_grows_without_its_lanes() -> None:
    """What the program left behind the result is no part of it."""
    x = numbers(3, torch.float32)
    result = x.to("neuron") + 1
    with pytest.raises(RuntimeError, match="out of bounds"):
        result.as_strided((4,), (1,))
    assert result.clone().untyped_storage().nbytes() == 12
    result.resize_(5)
    assert_close(result[:3].cpu(), x + 1)
    result.mul_(2)
    assert_close(result[:3].cpu(), (x + 1) * 2)


def test_results_serve_operators_of_other_shapes() -> None:
    x = numbers(6, torch.float32)
    result, expected = x.to("neuron") * 2, x * 2
    assert_close(result.sum().cpu(), expected.sum())
    assert_close((result.view(2, 3) @ result.view(3, 2)).cpu(), expected.view(2, 3) @ expected.view(3, 2))
    assert_close(torch.stack([result, result]).cpu(), torch.stack([expected, expected]))
    result.add_(1)
    assert_close(result.cpu(), expected + 1)


def test_numbers_that_are_not_finite_stay_where_they_are() -> None:
    x = torch.tensor([float("nan"), float("inf"), -0.0, 2.0])
    longer = torch.full((64,), float("nan")).to("neuron")
    del longer  # its block may be the next operand's
    assert_close((x.to("neuron") - 1).cpu(), x - 1, equal_nan=True)
    assert_close(x.to("neuron")[2:].clone().add(1).cpu(), x[2:] + 1)


def test_gradients() -> None:
    for length in (2, 7):
        x = numbers(length, torch.float32).requires_grad_()
        y = x.detach().to("neuron").requires_grad_()
        (x.sigmoid() * x).sum().backward()
        (y.sigmoid() * y).sum().backward()
        assert_close(y.grad.cpu(), x.grad)
