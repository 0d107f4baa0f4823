# SPDX-License-Identifier: Apache-2.0
"""Scaled dot-product attention: masks, grouped queries, gradients, and which operators run."""

from __future__ import annotations

import math

import pytest
import torch
from case import FLOATS, check_on_lesser_processor, sample
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

import torch_neuronx

# The first is left to XLA, the second is large enough for the host kernel.
SIZES = {"small": (2, 4, 9, 8), "large": (2, 4, 80, 16)}
DTYPES = pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: str(d).removeprefix("torch."))


def tolerances(dtype: torch.dtype) -> dict[str, float]:
    return {torch.float64: {}, torch.float32: {"rtol": 1e-4, "atol": 1e-5}}.get(dtype, {"rtol": 2e-2, "atol": 2e-2})


def operands(shape, key_heads: int | None = None, dtype=torch.float32) -> list[torch.Tensor]:
    batch, heads, length, size = shape
    keys = (batch, key_heads or heads, length + 3, size)
    return [sample(*s, dtype=dtype, seed=i, low=-2, high=2) for i, s in enumerate((shape, keys, keys))]


def masks(shape, dtype) -> dict[str, torch.Tensor]:
    batch, heads, length, _ = shape
    hidden_row = sample(length, length + 3, seed=5) > 0
    hidden_row[2] = False
    return {
        "boolean": sample(length, length + 3, seed=5) > -1,
        "hidden row": hidden_row,
        "per batch": sample(batch, 1, 1, length + 3, seed=6) > -2,
        "added": sample(batch, heads, length, length + 3, seed=7, dtype=dtype),
    }


def reference(query, key, value, mask=None, **options) -> torch.Tensor:
    """PyTorch's composition of products and softmax, in double precision."""
    mask = mask if mask is None or mask.dtype == torch.bool else mask.double()
    with sdpa_kernel(SDPBackend.MATH):
        return scaled_dot_product_attention(query.double(), key.double(), value.double(), mask, **options)


def on_device(query, key, value, mask=None, **options) -> torch.Tensor:
    mask = None if mask is None else mask.to("neuron")
    return scaled_dot_product_attention(query.to("neuron"), key.to("neuron"), value.to("neuron"), mask, **options)


@DTYPES
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("options", ({}, {"is_causal": True}, {"scale": 0.3}), ids=("plain", "causal", "scale"))
def test_inference(size, options, dtype):
    tensors = operands(SIZES[size], dtype=dtype)
    expected = reference(*tensors, **options)
    torch_neuronx.clear_op_tracking()
    actual = on_device(*tensors, **options)
    torch.testing.assert_close(actual.cpu(), expected.to(dtype), **tolerances(dtype))
    assert "aten::scaled_dot_product_attention" in torch_neuronx.get_executed_ops()
    assert torch_neuronx.get_fallback_ops() == []


@DTYPES
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", masks(SIZES["small"], torch.float32))
def test_masks(name, size, dtype):
    tensors = operands(SIZES[size], dtype=dtype)
    mask = masks(SIZES[size], dtype)[name]
    actual = on_device(*tensors, mask)
    torch.testing.assert_close(actual.cpu(), reference(*tensors, mask).to(dtype), **tolerances(dtype))


@pytest.mark.parametrize(
    "shapes",
    (
        ((5, 8), (7, 8), (7, 8)),
        ((3, 5, 8), (3, 7, 8), (3, 7, 4)),
        ((2, 1, 3, 5, 8), (1, 2, 3, 7, 8), (2, 2, 3, 7, 8)),
    ),
    ids=("2-dim", "value-size", "broadcast"),
)
def test_shapes(shapes):
    tensors = [sample(*s, seed=i) for i, s in enumerate(shapes)]
    torch.testing.assert_close(on_device(*tensors).cpu(), reference(*tensors).float(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("length", (0, 5))
def test_empty(length):
    query, key = torch.zeros(2, 3, 5 - length, 4), torch.zeros(2, 3, length, 4)
    assert torch.equal(on_device(query, key, key).cpu(), torch.zeros(2, 3, 5 - length, 4))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16))
@pytest.mark.parametrize("kind", ("plain", "causal", "scale", "hidden row", "added", "grouped"))
def test_gradients(kind, size, dtype):
    shape = SIZES[size]
    options = {"causal": {"is_causal": True}, "scale": {"scale": 0.3}, "grouped": {"enable_gqa": True}}.get(kind, {})
    tensors = operands(shape, 2 if kind == "grouped" else None, dtype)
    mask = masks(shape, dtype).get(kind)
    grad = sample(*shape, dtype=dtype, seed=11)
    leaves = [t.double().requires_grad_() for t in tensors]
    reference(*leaves, mask, **options).backward(grad.double())
    device_leaves = [t.to("neuron", copy=True).requires_grad_() for t in tensors]
    torch_neuronx.clear_op_tracking()
    on_device(*device_leaves, mask, **options).backward(grad.to("neuron"))
    for actual, expected in zip(device_leaves, leaves, strict=True):
        close = tolerances(dtype) if dtype == torch.float32 else {"rtol": 5e-2, "atol": 5e-2}
        torch.testing.assert_close(actual.grad.cpu(), expected.grad.to(dtype), **close)
    executed = torch_neuronx.get_executed_ops()
    assert "aten::_scaled_dot_product_flash_attention_for_cpu_backward" in executed
    assert "aten::_softmax" not in executed


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("mask_only", (False, True), ids=("and of the operands", "alone"))
@pytest.mark.parametrize("name", ("added", "per head", "per batch"))
def test_gradient_of_the_mask(name, mask_only, size):
    """PyTorch's fused operator saves nothing for the mask's gradient alone: then its composition serves."""
    batch, heads, length, _ = shape = SIZES[size]
    mask = {
        "added": masks(shape, torch.float32)["added"],
        "per head": sample(heads, 1, length + 3, seed=8),
        "per batch": sample(batch, 1, length, length + 3, seed=9),
    }[name]
    tensors = [*operands(shape), mask]
    leaves = [t.double().requires_grad_(t is mask or not mask_only) for t in tensors]
    reference(*leaves).square().sum().backward()
    device_leaves = [t.to("neuron", copy=True).requires_grad_(t is mask or not mask_only) for t in tensors]
    torch_neuronx.clear_op_tracking()
    scaled_dot_product_attention(*device_leaves).square().sum().backward()
    for actual, expected in zip(device_leaves, leaves, strict=True):
        if expected.requires_grad:
            torch.testing.assert_close(actual.grad.cpu(), expected.grad.float(), rtol=1e-4, atol=1e-4)
    fused = "aten::_scaled_dot_product_efficient_attention_backward" in torch_neuronx.get_executed_ops()
    assert fused != mask_only


def test_gradients_with_values_of_another_size():
    shapes = ((2, 3, 5, 8), (2, 3, 7, 8), (2, 3, 7, 4))
    leaves = [sample(*s, seed=i, dtype=torch.float64).requires_grad_() for i, s in enumerate(shapes)]
    device_leaves = [t.detach().float().to("neuron").requires_grad_() for t in leaves]
    reference(*leaves, is_causal=True).square().sum().backward()
    torch_neuronx.clear_op_tracking()
    scaled_dot_product_attention(*device_leaves, is_causal=True).square().sum().backward()
    for actual, expected in zip(device_leaves, leaves, strict=True):
        torch.testing.assert_close(actual.grad.cpu(), expected.grad.float(), rtol=1e-4, atol=1e-4)
    assert "aten::_softmax" not in torch_neuronx.get_executed_ops()


def with_logsumexp(kind: str, query, key, value, causal: bool, scale: float | None):
    """Output and log-sum-exp of one of PyTorch's fused operators, and the operator's other results."""
    aten = torch.ops.aten
    if kind == "flash":
        output, logsumexp, *rest = aten._scaled_dot_product_flash_attention(query, key, value, 0.0, causal, scale=scale)
        assert rest[:4] == [None, None, query.shape[2], key.shape[2]]
        return output, logsumexp
    mask = None if kind == "efficient" else torch.zeros((), device=query.device).expand(1, 1, 1, key.shape[2])
    output, logsumexp, _, _ = aten._scaled_dot_product_efficient_attention(
        query, key, value, mask, True, 0.0, causal, scale=scale
    )
    assert logsumexp.shape[-1] % 32 == 0
    return output, logsumexp[..., : query.shape[2]]


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16))
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("mode", ("eager", "compiled"))
@pytest.mark.parametrize("kind", ("flash", "efficient", "masked"))
@pytest.mark.parametrize(("causal", "scale"), ((False, None), (True, 0.3)), ids=("plain", "causal"))
def test_log_sum_exp(kind, causal, scale, size, mode, dtype):
    """Against the operator of the CPU, forward and backward."""
    tensors, grad = operands(SIZES[size], dtype=dtype), sample(*SIZES[size], dtype=dtype, seed=11)
    leaves = [t.clone().requires_grad_() for t in tensors]
    expected = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(*leaves, 0.0, causal, scale=scale)
    expected[0].backward(grad)
    device_leaves = [t.to("neuron", copy=True).requires_grad_() for t in tensors]
    function = with_logsumexp
    if mode == "compiled":
        torch._dynamo.reset()
        function = torch.compile(with_logsumexp, backend="neuron", fullgraph=True, dynamic=False)
    torch_neuronx.clear_op_tracking()
    actual = function(kind, *device_leaves, causal, scale)
    actual[0].backward(grad.to("neuron"))
    for ours, theirs in zip(actual, expected, strict=True):
        torch.testing.assert_close(ours.detach().cpu(), theirs.detach().contiguous(), **tolerances(dtype))
    close = tolerances(dtype) if dtype == torch.float32 else {"rtol": 5e-2, "atol": 5e-2}
    for ours, theirs in zip(device_leaves, leaves, strict=True):
        torch.testing.assert_close(ours.grad.cpu(), theirs.grad, **close)
    assert torch_neuronx.get_fallback_ops() == []


FUSED = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
FUSED_BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
SHAPES = {  # length, keys, size: around the blocks of the host kernel
    "one key": (64, 1, 16),
    "odd size": (33, 257, 15),
    "less than a block": (40, 77, 40),
    "more keys": (130, 300, 72),
    "more rows": (600, 200, 64),
}


def small(*shape, **options) -> torch.Tensor:
    """Scores of these are small enough for float32 to keep five digits of their exponentials."""
    return sample(*shape, low=-1, high=1, **options)


def assert_fused(query, key, value, causal=False, mask=None, scale=None):
    """The fused operator on the device gives what it gives on the CPU in double precision, and so do gradients."""
    wide = None if mask is None else mask.double()
    expanded = [t.double().repeat_interleave(query.shape[1] // t.shape[1], 1) for t in (key, value)]
    expected = FUSED(query.double(), *expanded, 0.0, causal, attn_mask=wide, scale=scale)
    on_neuron = [t.to("neuron") for t in (query, key, value)]
    actual = FUSED(*on_neuron, 0.0, causal, attn_mask=None if mask is None else mask.to("neuron"), scale=scale)
    close = {"rtol": 1e-5, "atol": 1e-5} if query.dtype == torch.float32 else {"rtol": 2e-2, "atol": 1e-2}
    torch.testing.assert_close(actual[0].cpu(), expected[0].to(query.dtype), **close)
    # Scores of half types are exact in float32, and so is their sum of exponentials but for rounding.
    torch.testing.assert_close(actual[1].cpu(), expected[1].float(), rtol=1e-4, atol=1e-4)
    grad = small(*query.shape, seed=9, dtype=query.dtype)
    operands = (grad, query, key, value, expected[0].to(query.dtype), expected[1].float())
    expanded = [t.double() for t in (grad, query)] + expanded + [t.double() for t in operands[4:]]
    gradients = list(FUSED_BACKWARD(*expanded, 0.0, causal, attn_mask=wide, scale=scale))
    for i in (1, 2):  # of heads that share keys
        gradients[i] = gradients[i].unflatten(1, (key.shape[1], -1)).sum(2)
    on_neuron = [t.to("neuron") for t in operands]
    actual = FUSED_BACKWARD(*on_neuron, 0.0, causal, attn_mask=None if mask is None else mask.to("neuron"), scale=scale)
    for ours, theirs in zip(actual, gradients, strict=True):
        bound = (1e-5 if query.dtype == torch.float32 else 2e-2) * max(1.0, theirs.abs().max().item())
        torch.testing.assert_close(ours.cpu().double(), theirs, rtol=0, atol=bound)


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16))
@pytest.mark.parametrize("causal", (False, True), ids=("plain", "causal"))
@pytest.mark.parametrize("shape", SHAPES)
def test_blocks(shape, causal, dtype):
    length, keys, size = SHAPES[shape]
    query = small(2, 16, length, size, seed=1, dtype=dtype)
    key, value = (small(2, 16, keys, size, seed=i, dtype=dtype) for i in (2, 3))
    assert_fused(query, key, value, causal)


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16))
@pytest.mark.parametrize("heads", ((6, 2), (6, 1), (1, 1)), ids=lambda heads: f"{heads[0]}of{heads[1]}")
def test_heads_that_share_keys(heads, dtype):
    query = small(1, heads[0], 200, 64, seed=1, dtype=dtype)
    key, value = (small(1, heads[1], 520, 64, seed=i, dtype=dtype) for i in (2, 3))
    assert_fused(query, key, value, causal=True)


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16))
@pytest.mark.parametrize("causal", (False, True), ids=("plain", "causal"))
@pytest.mark.parametrize("kind", ("hidden blocks", "hidden first block", "all hidden", "lowest", "per head", "per row"))
def test_masks_of_blocks(kind, causal, dtype):
    """Blocks of keys that no row of a block sees are left out; rows without any key are zero."""
    length, keys = 100, 600
    query = small(1, 8, length, 64, seed=1, dtype=dtype)
    key, value = (small(1, 8, keys, 64, seed=i, dtype=dtype) for i in (2, 3))
    visible = {
        "hidden blocks": torch.ones(length, keys, dtype=torch.bool).tril(),
        "hidden first block": torch.arange(keys).expand(length, keys) > 400,
        "all hidden": torch.zeros(length, keys, dtype=torch.bool),
        "lowest": torch.arange(keys).expand(length, keys) < torch.arange(length)[:, None] - 5,
    }.get(kind)
    if visible is None:
        mask = small(*((8, 1, keys) if kind == "per head" else (1, length, 1)), seed=4, dtype=dtype)
    else:
        hidden = torch.finfo(dtype).min if kind == "lowest" else -math.inf
        mask = torch.zeros(length, keys, dtype=dtype).masked_fill(~visible, hidden)[None]
    assert_fused(query, key, value, causal, mask[None])


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16))
@pytest.mark.parametrize("scale", (-0.3, 0.0, 2.0))
def test_scales(scale, dtype):
    assert_fused(*(small(2, 8, 70, 64, seed=i, dtype=dtype) for i in range(3)), scale=scale)


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16))
@pytest.mark.parametrize("number", (math.nan, math.inf, 1e30))
def test_extreme_numbers(number, dtype):
    """In a query, and in a value: of one row, and of one column of all rows."""
    query, key, value = (small(1, 8, 80, 64, seed=i, dtype=dtype) for i in range(3))
    query[0, 1, 3, 2] = number
    value[0, 2, 7, 5] = number
    expected = reference(query, key, value).to(dtype)
    torch.testing.assert_close(on_device(query, key, value).cpu(), expected, equal_nan=True, **tolerances(dtype))


# A processor without AVX-512, and one for which oneDNN multiplies no blocks.
@pytest.mark.parametrize("setting", ("ATEN_CPU_CAPABILITY=avx2", "ONEDNN_MAX_CPU_ISA=AVX2"))
def test_lesser_processors(setting):
    names = ("test_blocks", "test_heads_that_share_keys", "test_masks_of_blocks", "test_scales", "test_extreme_numbers")
    check_on_lesser_processor(setting, __file__, "test_gradients", *names)


def test_fused_operators_refuse_dropout():
    query, key, value = (t.to("neuron") for t in operands(SIZES["small"]))
    with pytest.raises(RuntimeError, match=r"_scaled_dot_product_flash_attention: fused attention has no dropout"):
        torch.ops.aten._scaled_dot_product_flash_attention(query, key, value, 0.5)
    with pytest.raises(RuntimeError, match=r"return_debug_mask=False"):
        torch.ops.aten._scaled_dot_product_flash_attention(query, key, value, 0.0, False, True)


def test_permuted_operands():
    """As models make them: (batch, length, heads, size) seen as (batch, heads, length, size)."""
    tensors = [sample(2, 70, 4, 16, seed=i) for i in range(3)]
    expected = reference(*(t.transpose(1, 2) for t in tensors)).transpose(1, 2)
    actual = scaled_dot_product_attention(*(t.to("neuron").transpose(1, 2) for t in tensors)).transpose(1, 2)
    assert actual.is_contiguous()
    torch.testing.assert_close(actual.cpu(), expected.float(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("training", (False, True), ids=("inference", "training"))
def test_dropout(training):
    """Kept probabilities are scaled: with values of one, the mean stays one."""
    query, key = (sample(4, 8, 64, 16, seed=i).to("neuron") for i in range(2))
    value = torch.ones(4, 8, 64, 16).to("neuron").requires_grad_(training)
    torch.manual_seed(0)
    y = scaled_dot_product_attention(query, key, value, dropout_p=0.5).detach().cpu()
    assert not torch.allclose(y, torch.ones_like(y), atol=1e-3)
    assert abs(y.mean().item() - 1) < 0.05


def test_not_a_number_stays():
    query, key, value = operands(SIZES["small"])
    query[0, 1, 3, 2] = math.nan
    nan = on_device(query, key, value).cpu().isnan()
    assert nan[0, 1, 3].all()
    assert nan.sum() == nan[0, 1, 3].numel()


FEW = {  # query heads, key heads, length, keys, size
    "a token": (12, 4, 1, 640, 64),
    "alone": (8, 8, 1, 777, 72),
    "one key head": (6, 1, 3, 521, 47),
    "some": (8, 2, 4, 333, 40),
}


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16))
@pytest.mark.parametrize("kind", ("plain", "hidden", "all hidden", "per head", "scale"))
@pytest.mark.parametrize("shape", FEW)
def test_few_queries(shape, kind, dtype):
    heads, key_heads, length, keys, size = FEW[shape]
    query = small(2, heads, length, size, seed=1, dtype=dtype)
    key, value = (small(2, key_heads, keys, size, seed=i, dtype=dtype) for i in (2, 3))
    mask = {
        "hidden": torch.zeros(1, 1, length, keys, dtype=dtype).masked_fill(torch.arange(keys) > keys // 2, -math.inf),
        "all hidden": torch.full((2, 1, length, keys), -math.inf, dtype=dtype),
        "per head": small(1, heads, 1, keys, seed=4, dtype=dtype),
    }.get(kind)
    assert_fused(query, key, value, mask=mask, scale=-0.3 if kind == "scale" else None)


@pytest.mark.parametrize("number", (math.nan, math.inf, 1e30))
def test_extreme_numbers_of_few_queries(number):
    query, key, value = (small(1, 8, keys, 64, seed=keys) for keys in (1, 600, 601))
    value = value[:, :, :600].contiguous()
    query[0, 0, 0, 3], value[0, 1, 7, 5] = number, number
    expected = FUSED(query, key, value, 0.0, False)[0]
    actual = FUSED(*(t.to("neuron") for t in (query, key, value)), 0.0, False)[0]
    torch.testing.assert_close(actual.cpu(), expected, rtol=1e-4, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16))
@pytest.mark.parametrize("length", (1, 40))
def test_repeated_heads_in_graphs(length, dtype):
    """As Transformers repeats keys and values: (batch, heads, 1, keys, size) expanded."""

    def repeated(x):
        return x[:, :, None].expand(-1, -1, 3, -1, -1).reshape(x.shape[0], -1, *x.shape[2:])

    def function(query, key, value):
        return torch.nn.functional.scaled_dot_product_attention(query, repeated(key), repeated(value))

    query = small(2, 12, length, 64, dtype=dtype)
    key, value = (small(2, 4, 640, 64, seed=i, dtype=dtype) for i in (1, 2))
    compiled = torch.compile(function, backend="neuron", fullgraph=True, dynamic=False)
    with torch.no_grad():
        actual = compiled(*(t.to("neuron") for t in (query, key, value)))
    torch.testing.assert_close(actual.cpu(), function(query, key, value), **tolerances(dtype))
