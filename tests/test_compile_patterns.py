# SPDX-License-Identifier: Apache-2.0
"""Groups of operators that a compiled graph hands to one kernel: results equal those of the operators."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.nn import functional as F
from torch.testing import assert_close

DTYPES = [torch.float32, torch.bfloat16]

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


@pytest.fixture
def kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """How often the saved programs call a host kernel, with a configuration."""
    monkeypatch.setenv("TORCH_NEURONX_PRESERVE_COMPILATION_ARTIFACTS", "1")
    monkeypatch.setenv("TORCH_NEURONX_DEBUG_DIR", str(tmp_path))

    def count(name: str, config: str = "") -> int:
        lines = [line for file in tmp_path.rglob("program.mlir") for line in file.read_text().splitlines()]
        return sum(f'"neuron.{name}"' in line and config in line for line in lines)

    return count


def sample(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def check(function, *inputs: torch.Tensor) -> None:
    """Within float32's accuracy of what the function gives in double, rounded to its dtype."""
    expected = function(*(x.double() for x in inputs))
    actual = torch.compile(function, backend="neuron", fullgraph=True)(*(x.to("neuron") for x in inputs)).cpu()
    assert actual.dtype == inputs[0].dtype and actual.stride() == function(*inputs).stride()
    rtol = 4e-6 if actual.dtype == torch.float32 else torch.finfo(actual.dtype).eps
    assert_close(actual, expected.to(actual.dtype), rtol=rtol, atol=rtol)


# -- gates ----------------------------------------------------------------------------------------


def halves(x):
    gate, x = x.chunk(2, dim=-1)
    return F.silu(gate) * x


def parts_of_a_part(x):
    _, x = torch.split(x, [7, 300], dim=-1)
    return halves(x)


GATES = {
    "halves": (halves, [(2, 65, 514)]),
    "a part": (parts_of_a_part, [(2, 200, 307)]),
    "two tensors": (lambda gate, x: F.silu(gate) * x, [(130, 257), (130, 257)]),
    "the other way round": (lambda gate, x: x * F.silu(gate), [(130, 257), (130, 257)]),
    "transposed": (lambda gate, x: F.silu(gate.t()) * x, [(257, 130), (130, 257)]),
    "one dimension": (lambda gate, x: F.silu(gate) * x, [(40001,), (40001,)]),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("function, shapes", GATES.values(), ids=GATES)
def test_gated_silu(kernels, function, shapes, dtype):
    check(function, *(sample(*shape, dtype=dtype, seed=i) for i, shape in enumerate(shapes)))
    assert kernels("gated_silu") == 1


def test_gated_silu_of_special_numbers():
    special = torch.tensor([0.0, -0.0, 1e-30, -1e-30, 88.0, -88.0, 3e38, -3e38, torch.inf, -torch.inf, torch.nan])
    gate, x = special.repeat(4000), torch.ones(44000)
    result = torch.compile(lambda gate, x: F.silu(gate) * x, backend="neuron")(gate.to("neuron"), x.to("neuron"))
    assert_close(result.cpu(), F.silu(gate), equal_nan=True, atol=1e-36, rtol=2e-6)


NOT_GATES = {
    "small": (lambda gate, x: F.silu(gate) * x, [(3, 4), (3, 4)]),
    "broadcast": (lambda gate, x: F.silu(gate) * x, [(130, 257), (1, 257)]),
    "a number": (lambda gate: F.silu(gate) * 2.0, [(130, 257)]),
}


@pytest.mark.parametrize("function, shapes", NOT_GATES.values(), ids=NOT_GATES)
def test_what_is_no_gate(kernels, function, shapes):
    check(function, *(sample(*shape, seed=i) for i, shape in enumerate(shapes)))
    assert kernels("gated_silu") == 0


def test_a_gate_that_is_read_twice(kernels):
    def function(gate, x):
        gate = F.silu(gate)
        return gate * x + gate

    check(function, sample(130, 257), sample(130, 257, seed=1))
    assert kernels("gated_silu") == 0


# -- normalizations -------------------------------------------------------------------------------


def written_out(x, weight, eps=1e-6):
    wide = x.float() if x.dtype.itemsize < 4 else x
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    return weight * wide.to(x.dtype)


RMS_NORMS = {
    "written out": written_out,
    "an operator": lambda x, weight: F.rms_norm(x, (x.shape[-1],), weight, 1e-6),
    "an operator without epsilon": lambda x, weight: F.rms_norm(x, (x.shape[-1],), weight),
    "transposed": lambda x, weight: written_out(x.transpose(0, 1), weight).transpose(0, 1),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(3, 70, 257), (9000, 2, 4)])
@pytest.mark.parametrize("function", RMS_NORMS.values(), ids=RMS_NORMS)
def test_rms_norm(kernels, function, shape, dtype):
    x, weight = sample(*shape, dtype=dtype), sample(shape[-1], dtype=dtype, seed=1)
    actual = torch.compile(function, backend="neuron", fullgraph=True)(x.to("neuron"), weight.to("neuron"))
    assert_close(actual.cpu(), function(x, weight), rtol=1.6e-2 if dtype == torch.bfloat16 else 1e-5, atol=1e-5)
    assert kernels("rms_norm") == 1


NOT_RMS_NORMS = {
    "another dimension": lambda x, weight: weight * (x * torch.rsqrt(x.pow(2).mean(1, keepdim=True) + 1e-6)),
    "another tensor": lambda x, weight: weight * ((x + 1) * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)),
    "another power": lambda x, weight: weight * (x * torch.rsqrt(x.pow(4).mean(-1, keepdim=True) + 1e-6)),
}


@pytest.mark.parametrize("function", NOT_RMS_NORMS.values(), ids=NOT_RMS_NORMS)
def test_what_is_no_rms_norm(kernels, function):
    check(function, sample(30, 40, 64), sample(64, seed=1))
    assert kernels("rms_norm") == 0


def image(x, kernel):
    """x, as convolutions that change nothing give it: with its channels last inside of the program."""
    for _ in range(3):
        x = F.conv2d(x, kernel, padding=1, groups=x.shape[1] // kernel.shape[1])
    return x


IMAGE_NORMS = {
    "silu": (lambda x, k, w, b: F.silu(F.group_norm(image(x, k), 4, w, b, 1e-6)), 1),
    "silu of one group": (lambda x, k, w, b: F.silu(F.group_norm(image(x, k), 1, w, b)), 1),
    "silu without weights": (lambda x, k, w, b: F.silu(F.group_norm(image(x, k), 4)) * w[0] + b[0], 1),
    "alone": (lambda x, k, w, b: F.group_norm(image(x, k), 36, w, b), 0),
    "read twice": (lambda x, k, w, b: F.silu(y := F.group_norm(image(x, k), 4, w, b)) + y.relu(), 0),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("function, with_silu", IMAGE_NORMS.values(), ids=IMAGE_NORMS)
def test_normalized_images(kernels, function, with_silu, dtype):
    x = (3 * sample(3, 36, 31, 33) + sample(1, 36, 1, 1, seed=1)).to(dtype)
    kernel = F.pad(torch.eye(36)[:, :, None, None], (1, 1, 1, 1)).to(dtype)
    weight, bias = sample(36, dtype=dtype, seed=2), sample(36, dtype=dtype, seed=3)
    expected = function(*(t.double() for t in (x, kernel, weight, bias)))
    on_device = [t.to("neuron") for t in (x, kernel, weight, bias)]
    actual = torch.compile(function, backend="neuron", fullgraph=True)(*on_device).cpu()
    rtol = 1e-5 if dtype == torch.float32 else 2 * torch.finfo(dtype).eps
    assert_close(actual, expected.to(dtype), rtol=rtol, atol=rtol)
    assert kernels("normalize_channels", "silu=1") == with_silu


def test_normalized_images_of_special_numbers(kernels):
    """Infinities and NaN spread over their group, and no further."""

    def function(x, kernel):
        return F.silu(F.group_norm(image(x, kernel), 6))

    x = sample(2, 36, 31, 33)
    x[0, 0, 0, 0], x[1, 35, 30, 32] = torch.nan, torch.inf
    kernel = F.pad(torch.eye(6).repeat(6, 1)[:, :, None, None], (1, 1, 1, 1))
    actual = torch.compile(function, backend="neuron")(x.to("neuron"), kernel.to("neuron")).cpu()
    expected = function(x, kernel)
    assert expected.isnan().sum() == 2 * 6 * 31 * 33
    assert_close(actual, expected, equal_nan=True, rtol=1e-5, atol=1e-5)
    assert kernels("normalize_channels", "silu=1") == 1


def test_gradients_of_rms_norm(kernels):
    results = []
    for device in ("cpu", "neuron"):
        x, weight = (t.to(device).requires_grad_() for t in (sample(300, 130), sample(130, seed=1)))
        run = torch.nn.functional.rms_norm
        run = run if device == "cpu" else torch.compile(run, backend="neuron", fullgraph=True)
        output = run(x, (130,), weight)
        results.append([t.cpu() for t in (output, *torch.autograd.grad(output.pow(3).sum(), (x, weight)))])
    assert_close(results[1], results[0], rtol=1e-4, atol=1e-4)


# -- rotary embeddings ------------------------------------------------------------------------------


def by_halves(x, cosine, sine):
    half = x.shape[-1] // 2
    turned = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
    return x * cosine + turned * sine


def by_neighbours(x, cosine, sine):
    real, imaginary = x.reshape(*x.shape[:-1], -1, 2).unbind(-1)
    turned = torch.stack([-imaginary, real], dim=-1).flatten(-2)
    return (
        (x.float() * cosine + turned.float() * sine).to(x.dtype) if x.dtype.itemsize < 4 else x * cosine + turned * sine
    )


def of_heads(x, cosine, sine):
    """(batch, positions, heads, size) in memory, turned with the heads before the positions."""
    return by_halves(x.transpose(1, 2), cosine.unsqueeze(1), sine.unsqueeze(1))


ROTARIES = {
    "halves": (by_halves, (2, 40, 6, 80), (40, 1, 80), None),
    "halves, angles of a batch": (by_halves, (3, 30, 8, 64), (3, 30, 1, 64), None),
    "halves, transposed": (of_heads, (2, 40, 6, 80), (2, 40, 80), None),
    "neighbours": (by_neighbours, (1, 50, 8, 90), (1, 50, 1, 90), torch.float32),
    "neighbours, one row of angles": (by_neighbours, (5, 30, 8, 64), (64,), torch.float32),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("function, shape, angles, angle_dtype", ROTARIES.values(), ids=ROTARIES)
def test_rotary_embedding(kernels, function, shape, angles, angle_dtype, dtype):
    x = sample(*shape, dtype=dtype)
    cosine, sine = (sample(*angles, dtype=angle_dtype or dtype, seed=seed) for seed in (1, 2))
    check(function, x, cosine, sine)
    assert kernels("rotary") == 1


NOT_ROTARIES = {
    "halves in order": lambda x, c, s: x * c + torch.cat((-x[..., :32], x[..., 32:]), -1) * s,
    "of another tensor": lambda x, c, s: (x + 1) * c + torch.cat((-x[..., 32:], x[..., :32]), -1) * s,
    "uneven parts": lambda x, c, s: x * c + torch.cat((-x[..., 40:], x[..., :40]), -1) * s,
    "another dimension": lambda x, c, s: x * c + torch.cat((-x[:, 20:], x[:, :20]), 1) * s,
}


@pytest.mark.parametrize("function", NOT_ROTARIES.values(), ids=NOT_ROTARIES)
def test_what_is_no_rotary_embedding(kernels, function):
    check(function, sample(2, 40, 16, 64), sample(64, seed=1), sample(64, seed=2))
    assert kernels("rotary") == 0


def test_gradients_of_both(kernels):
    """In training as well, what the backward pass reads is saved."""

    def function(x, cosine, sine):
        return by_halves(halves(x), cosine, sine)

    inputs = [sample(4, 30, 8, 128), sample(64, seed=1), sample(64, seed=2)]
    results = []
    for device in ("cpu", "neuron"):
        tensors = [x.to(device).requires_grad_() for x in inputs]
        run = function if device == "cpu" else torch.compile(function, backend="neuron", fullgraph=True)
        output = run(*tensors)
        results.append([t.cpu() for t in (output, *torch.autograd.grad(output.sum(), tensors))])
    assert_close(results[1], results[0], rtol=1e-4, atol=1e-4)
