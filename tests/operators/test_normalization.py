# SPDX-License-Identifier: Apache-2.0
"""Layer, group, root-mean-square and batch normalization, with gradients."""

from __future__ import annotations

import pytest
import torch
from case import FLOATS, Case, check, parametrize, sample

aten = torch.ops.aten

FULL, HALF = FLOATS[:2], FLOATS[2:]
CLOSE = {"rtol": 2e-2, "atol": 2e-2}
BATCH_NORM_SHAPES = {"1d": (4, 6), "sequence": (3, 6, 5), "2d": (2, 6, 4, 3), "3d": (2, 6, 2, 3, 2)}


def on(op, make, dtypes=FULL, id="", **options) -> Case:
    options = {"layouts": (), **(CLOSE if dtypes[0] in HALF else {}), **options}
    return Case(op, lambda dtype: (make(dtype), {}), dtypes, id, **options)


def layer(*normalized: int, parameters: bool = True):
    def make(dtype):
        x = sample(2, 5, 8, dtype=dtype)
        weight, bias = (sample(*normalized, dtype=dtype, seed=s) if parameters else None for s in (1, 2))
        return x, list(normalized), weight, bias, 1e-5

    return make


def group(groups: int, parameters: bool = True):
    def make(dtype):
        x = sample(2, 6, 4, 3, dtype=dtype) + 2
        weight, bias = (sample(6, dtype=dtype, seed=s) if parameters else None for s in (1, 2))
        return x, weight, bias, 2, 6, 12, groups, 1e-5

    return make


def batch(shape, *options, parameters: bool = True):
    """Arguments up to eps of the batch norms with running averages."""

    def make(dtype):
        x = sample(*shape, dtype=dtype) + 1
        weight, bias, mean = (sample(6, dtype=dtype, seed=s) for s in (1, 2, 3))
        variance = sample(6, dtype=dtype, seed=4, low=0.5, high=2)
        return x, *((weight, bias) if parameters else (None, None)), mean, variance, *options, 0.3, 1e-5

    return make


def root_mean_square(dtype):
    return sample(2, 5, 8, dtype=dtype), [8], sample(8, dtype=dtype, seed=1), 1e-6


CASES = [
    on(aten.native_layer_norm.default, layer(8), layouts=("transposed", "sliced", "offset", "expanded")),
    on(aten.native_layer_norm.default, layer(5, 8, parameters=False), id="two-dims"),
    on(aten.layer_norm.default, lambda d: (*layer(8)(d)[:4], 1e-5, True), FLOATS[2:]),
    on(aten.native_group_norm.default, group(3), layouts=("offset",)),
    on(aten.native_group_norm.default, group(2, parameters=False), HALF, id="plain"),
    on(aten.group_norm.default, lambda d: (group(3)(d)[0], 3, *group(3)(d)[1:3], 1e-5, True), FLOATS[2:]),
    on(aten.rms_norm.default, root_mean_square),
    on(aten.rms_norm.default, root_mean_square, HALF, id="half"),
    on(aten.rms_norm.default, lambda d: (sample(3, 8, dtype=d) * 1e-3, [8]), id="default-eps"),
    on(aten._fused_rms_norm.default, root_mean_square, (torch.float32,), mutable=False),
    *(
        on(aten._native_batch_norm_legit_functional.default, batch(shape, True), id=f"train-{name}")
        for name, shape in BATCH_NORM_SHAPES.items()
    ),
    on(aten._native_batch_norm_legit.no_stats, lambda d: (*batch((2, 6, 4, 3))(d)[:3], True, 0.3, 1e-5)),
    on(aten.native_batch_norm.default, batch((2, 6, 4, 3), True, parameters=False), mutable=False),
]


@parametrize(CASES)
def test_normalization(case, dtype, variant):
    check(case, dtype, variant)


def gradients(module: torch.nn.Module, x: torch.Tensor, device: str) -> list[torch.Tensor]:
    """Result, running averages and gradients, on the CPU."""
    module = module.to(device)
    leaf = x.to(device, copy=True).requires_grad_()
    y = module(leaf)
    grad = sample(*y.shape, dtype=x.dtype, seed=9).to(device)
    y.backward(grad)
    results = [y, leaf.grad, *(p.grad for p in module.parameters()), *(b for b in module.buffers())]
    return [r.detach().cpu() for r in results]


def make_module(name: str, training: bool) -> torch.nn.Module:
    torch.manual_seed(0)
    module = {
        "layer_norm": lambda: torch.nn.LayerNorm(8),
        "layer_norm_plain": lambda: torch.nn.LayerNorm((6, 8), elementwise_affine=False),
        "layer_norm_no_bias": lambda: torch.nn.LayerNorm(8, bias=False),
        "group_norm": lambda: torch.nn.GroupNorm(3, 6),
        "rms_norm": lambda: torch.nn.RMSNorm(8),
        "batch_norm": lambda: torch.nn.BatchNorm1d(6),
        "batch_norm_plain": lambda: torch.nn.BatchNorm1d(6, affine=False),
        "batch_norm_cumulative": lambda: torch.nn.BatchNorm1d(6, momentum=None),
        "batch_norm_untracked": lambda: torch.nn.BatchNorm1d(6, track_running_stats=False),
        "instance_norm": lambda: torch.nn.InstanceNorm1d(6, affine=True),
    }[name]()
    return module.train(training)


MODULES = (
    "layer_norm layer_norm_plain layer_norm_no_bias group_norm rms_norm batch_norm batch_norm_plain "
    "batch_norm_cumulative batch_norm_untracked instance_norm"
).split()


@pytest.mark.parametrize("training", (True, False), ids=("train", "eval"))
@pytest.mark.parametrize("name", MODULES)
def test_gradients(name, training):
    x = sample(4, 6, 8) + 1
    expected = gradients(make_module(name, training), x, "cpu")
    actual = gradients(make_module(name, training), x, "neuron")
    for got, want in zip(actual, expected, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ("layer_norm", "group_norm", "rms_norm", "batch_norm"))
def test_half_gradients(name):
    """Against the CPU in float32: the device rounds once where the CPU's half-type kernels round more often."""
    x = (sample(4, 6, 8) + 1).bfloat16()
    expected = gradients(make_module(name, True), x.float(), "cpu")
    actual = gradients(make_module(name, True).bfloat16(), x, "neuron")
    for got, want in zip(actual, expected, strict=True):
        torch.testing.assert_close(got.float(), want.float(), rtol=3e-2, atol=5e-2)


def test_constant_rows_have_no_variance():
    x = torch.full((3, 8), 1e4)
    y = torch.nn.functional.layer_norm(x.to("neuron"), (8,))
    torch.testing.assert_close(y.cpu(), torch.zeros(3, 8))


def test_large_mean_keeps_the_variance():
    """E[x^2] - E[x]^2 would lose it in float32."""
    x = sample(2, 512) + 4096
    y = torch.nn.functional.layer_norm(x.to("neuron"), (512,)).cpu()
    torch.testing.assert_close(y, torch.nn.functional.layer_norm(x.double(), (512,)).float(), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16))
@pytest.mark.parametrize("order", (torch.contiguous_format, torch.channels_last))
@pytest.mark.parametrize("channels, groups", ((48, 6), (6, 6), (18, 1)))
def test_large_group_norm(channels, groups, order, dtype):
    """Enough for the host kernel, in pieces that are not all full."""
    x = (sample(2, channels, 97, 83, dtype=dtype) + 3).contiguous(memory_format=order)
    weight, bias = (sample(channels, dtype=dtype, seed=s) for s in (1, 2))
    expected = aten.native_group_norm(x.double(), weight.double(), bias.double(), 2, channels, 97 * 83, groups, 1e-5)
    device = (v.to("neuron") for v in (x, weight, bias))
    y, mean, rstd = aten.native_group_norm(*device, 2, channels, 97 * 83, groups, 1e-5)
    tolerances = {"rtol": 2e-2, "atol": 5e-2} if dtype == torch.bfloat16 else {"rtol": 1e-5, "atol": 1e-5}
    for got, want in zip((y, mean, rstd), expected, strict=True):
        torch.testing.assert_close(got.cpu(), want.to(dtype), check_stride=False, **tolerances)


@pytest.mark.parametrize("order", (torch.contiguous_format, torch.channels_last))
def test_large_group_norm_of_a_large_mean(order):
    x = (sample(1, 32, 64, 64) + 4096).contiguous(memory_format=order)
    y = torch.nn.functional.group_norm(x.to("neuron"), 8).cpu()
    expected = torch.nn.functional.group_norm(x.double(), 8).float()
    torch.testing.assert_close(y, expected, rtol=1e-3, atol=1e-3, check_stride=False)


@pytest.mark.parametrize("value", (float("nan"), float("inf")))
@pytest.mark.parametrize("order", (torch.contiguous_format, torch.channels_last))
def test_large_group_norm_spoils_one_group(value, order):
    x = sample(2, 8, 96, 96).contiguous(memory_format=order)
    x[1, 2, 50, 60] = value
    y = torch.nn.functional.group_norm(x.to("neuron"), 4).cpu()
    torch.testing.assert_close(
        y, torch.nn.functional.group_norm(x, 4), rtol=1e-5, atol=1e-5, equal_nan=True, check_stride=False
    )
