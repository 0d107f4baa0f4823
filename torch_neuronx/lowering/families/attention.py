# SPDX-License-Identifier: Apache-2.0
"""Scaled dot-product attention, forward and backward.

PyTorch's choice of implementation (`_fused_sdp_choice`) names the flash kernel for this device
where that can serve, so training saves the log-sum-exp instead of the probabilities; its operator,
`_scaled_dot_product_flash_attention_for_cpu`, has the plainest schema of PyTorch's fused kernels.

Host kernels, for four-dimensional operands with equal head sizes:
    neuron.attention           query, key, value [, mask] -> output, logsumexp
    neuron.attention_backward  grad, query, key, value, output, logsumexp [, mask] -> three gradients
    neuron.attention_few_queries  like the first, for few queries and a cache of keys and values
The first two take and return (batch, length, heads, size), and logsumexp (batch, length, heads): the layout
attention is computed in and models keep their activations in, so that transposes around it vanish. The third has
(batch, heads, length, size) and (batch, heads, length), which is how models keep their caches.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from ...stablehlo import Builder, Value
from ..promotion import opmath
from ..registry import lowers
from .normalization import finish
from .random import uniform

aten = torch.ops.aten


def attention_scale(query: Value, scale: float | None) -> float:
    return 1.0 / math.sqrt(query.shape[-1]) if scale is None else scale


def _dot(b: Builder, x: Value, y: Value, x_dim: int, y_dim: int, batch: int, dtype: torch.dtype) -> Value:
    """Contracts x_dim with y_dim; the first `batch` dimensions run along."""
    batch_dims = list(range(batch))
    return b.dot_general(x, y, ([x_dim], [y_dim]), (batch_dims, batch_dims), dtype)


def _grouped_query(b: Builder, query: Value, key: Value) -> Value:
    """(..., heads, L, E) as (..., key heads, heads per key head, L, E)."""
    *batch, heads, length, size = query.shape
    key_heads = key.shape[-3] if key.ndim > 2 else 1
    if key_heads == 0 or heads % key_heads:
        raise ValueError(f"expected the {heads} query heads to be a multiple of the {key_heads} key heads")
    return b.reshape(query, (*batch, key_heads, heads // key_heads, length, size))


def _scores(b: Builder, query: Value, key: Value, mask: Value | None, is_causal: bool, scale: float) -> Value:
    """Masked scores (..., G, L, S) of query (..., G, L, E) and key (..., S, E).

    Products of half types are accumulated and kept in float32.
    """
    dtype = opmath(query.dtype)
    batch = key.ndim - 2
    scores = b.multiply(_dot(b, query, key, query.ndim - 1, key.ndim - 1, batch, dtype), scale)
    length, keys = scores.shape[-2:]
    if is_causal:
        shape = (length, keys)
        visible = b.compare(b.iota(shape, 0, torch.int32), b.iota(shape, 1, torch.int32), "GE")
        scores = b.select(visible, scores, -math.inf)
    if mask is not None:
        # (..., heads, L, S) splits its heads as the query does; a mask of one head, or of none, broadcasts.
        if mask.ndim > 2:
            *lead, heads, rows, columns = mask.shape
            split = scores.shape[batch - 1 : batch + 1]
            split = split if heads == math.prod(split) else (heads, 1)
            mask = b.reshape(mask, (*lead, *split, rows, columns))
        if mask.dtype == torch.bool:
            scores = b.select(mask, scores, -math.inf)
        else:
            scores = b.add(scores, b.convert(mask, dtype))
    return scores


def _attention(
    b: Builder, query, key, value, mask, is_causal: bool, scale: float, dropout_p: float = 0.0
) -> tuple[Value, Value]:
    """Output (..., L, Ev) and log-sum-exp (..., L), both in the computation dtype.

    Leading dimensions agree, but for the last one of query, which is a multiple of the one of key
    and value. A row without a visible key gives zeros, also as its log-sum-exp.
    """
    dtype = opmath(query.dtype)
    shape = query.shape[:-1]
    scores = _scores(b, _grouped_query(b, query, key), key, mask, is_causal, scale)
    last = scores.ndim - 1
    highest = b.reduce(scores, [last], "maximum_number", keepdim=True)
    # -inf is the maximum of a row without a visible key: its exponentials are to become 0, not NaN.
    highest = b.select(b.compare(highest, -math.inf, "EQ"), 0.0, highest)
    weights = b.exponential(b.subtract(scores, highest))
    total = b.reduce(weights, [last], "add", keepdim=True)
    total = b.select(b.compare(total, 0.0, "EQ"), 1.0, total)
    if dropout_p:
        kept = b.compare(uniform(b, weights.shape, torch.float32), 1.0 - dropout_p, "LT")
        weights = b.select(kept, b.multiply(weights, 1.0 / (1.0 - dropout_p) if dropout_p < 1 else 0.0), 0.0)
    output = _dot(b, weights, b.convert(value, dtype), last, value.ndim - 2, value.ndim - 2, dtype)
    output = b.divide(output, total)
    logsumexp = b.add(b.log(total), highest)
    return b.reshape(output, (*shape, value.shape[-1])), b.reshape(logsumexp, shape)


def _gradients(
    b: Builder, grad, query, key, value, output, logsumexp, mask, is_causal, scale, of_mask: bool = False
) -> tuple[Value, ...]:
    """Gradients of query, key and value from the saved output and log-sum-exp (Dao et al., FlashAttention, B.4).

    of_mask: and that of the mask, which has been added.
    """
    dtype = opmath(query.dtype)
    grouped = _grouped_query(b, query, key)
    grad, output = (_grouped_query(b, b.convert(v, dtype), key) for v in (grad, output))
    batch, last = key.ndim - 2, grouped.ndim - 1
    scores = _scores(b, grouped, key, mask, is_causal, scale)
    saved = b.reshape(b.convert(logsumexp, dtype), (*scores.shape[:-1], 1))
    weights = b.exponential(b.subtract(scores, saved))
    wide_query, wide_key, wide_value = (b.convert(v, dtype) for v in (grouped, key, value))
    along = b.reduce(b.multiply(grad, output), [last], "add", keepdim=True)
    grad_weights = _dot(b, grad, wide_value, last, value.ndim - 1, batch, dtype)
    grad_masked = b.multiply(weights, b.subtract(grad_weights, along))
    grad_scores = b.multiply(grad_masked, scale)
    grad_query = b.reshape(_dot(b, grad_scores, wide_key, last, key.ndim - 2, batch, dtype), query.shape)
    batch_dims, rows = list(range(batch)), [batch, last - 1]
    grad_key = b.dot_general(grad_scores, wide_query, (rows, rows), (batch_dims, batch_dims), dtype)
    grad_value = b.dot_general(weights, grad, (rows, rows), (batch_dims, batch_dims), dtype)
    if not of_mask:
        return grad_query, grad_key, grad_value
    *lead, heads, group, length, keys = grad_masked.shape
    grad_mask = b.reshape(grad_masked, (*lead, heads * group, length, keys))
    return grad_query, grad_key, grad_value, _sum_to(b, grad_mask, mask.shape)


def _sum_to(b: Builder, x: Value, shape: tuple[int, ...]) -> Value:
    """Undoes a broadcast of `shape`."""
    lead = x.ndim - len(shape)
    dims = [*range(lead), *(lead + d for d, size in enumerate(shape) if size != x.shape[lead + d])]
    return b.reshape(b.reduce(x, dims, "add") if dims else x, shape)


# -- as host kernels ----------------------------------------------------------------------------


def _swap(b: Builder, x: Value) -> Value:
    """(batch, heads, length, ...) <-> (batch, length, heads, ...)."""
    return b.transpose(x, [0, 2, 1, *range(3, x.ndim)])


def _kernel_mask(b: Builder, mask: Value | None, dtype: torch.dtype) -> list[Value]:
    """The mask as the kernel takes it: added to the scores, in their dtype, four dimensions that may be 1."""
    if mask is None:
        return []
    if mask.dtype == torch.bool:
        mask = b.select(mask, b.constant(0.0, dtype), b.constant(-math.inf, dtype))
    mask = b.convert(mask, dtype)
    return [b.reshape(mask, (1,) * (4 - mask.ndim) + mask.shape)]


def _kernel_config(is_causal: bool, scale: float) -> str:
    return f"causal={int(is_causal)};scale={scale!r}"


# Products from which on the host kernel is faster than the decomposition. float16 gains little.
_KERNEL_PAYS = {torch.float32: 2**18, torch.bfloat16: 2**18, torch.float16: 2**24}


def _kernel_serves(query: Value, key: Value, value: Value, mask: Value | None) -> bool:
    four = query.ndim == key.ndim == value.ndim == 4 and (mask is None or mask.ndim <= 4)
    same = query.dtype == key.dtype == value.dtype and query.dtype in _KERNEL_PAYS
    if not four or not same or query.shape[-1] != value.shape[-1]:
        return False
    return query.numel * key.shape[-2] >= _KERNEL_PAYS[query.dtype]


def _distinct_heads(b: Builder, key: Value, value: Value) -> tuple[Value, Value]:
    """Key and value before each of their heads was repeated for the heads of the query that share it."""
    before = [b.repeated.get(v.name, (v, None)) for v in (key, value)]
    (key_before, key_dim), (value_before, value_dim) = before
    if key_dim == value_dim == key.ndim - 3 and key_before.shape[key_dim] == value_before.shape[key_dim]:
        return key_before, value_before
    return key, value


def _are_few(b: Builder, query: Value, key: Value, is_causal: bool) -> bool:
    """Whether `neuron.attention_few_queries` pays: for a token or some and keys that lie head by head."""
    if query.dtype == torch.float16 or is_causal or key.name in b.transposed:
        return False
    return query.shape[-2] <= 4 and query.shape[1] // key.shape[1] * query.shape[-2] <= 32


def attention(
    b: Builder, query: Value, key: Value, value: Value, mask: Value | None, is_causal: bool, scale: float
) -> tuple[Value, Value]:
    """Attention over equal leading dimensions (heads of query: a multiple of those of key and value)."""
    key, value = _distinct_heads(b, key, value)
    if not _kernel_serves(query, key, value, mask):
        return _attention(b, query, key, value, mask, is_causal, scale)

    batch, heads, length, size = query.shape
    if _are_few(b, query, key, is_causal):
        types = [(query.shape, query.dtype), ((batch, heads, length), torch.float32)]
        operands = [query, key, value, *_kernel_mask(b, mask, query.dtype)]

        def as_they_lie(query, key, value, mask=None):
            return list(_attention(b, query, key, value, mask, is_causal, scale))

        output, logsumexp = b.composite(
            "neuron.attention_few_queries", operands, types, as_they_lie, f"scale={scale!r}"
        )
        return output, logsumexp

    def decomposition(query, key, value, mask=None):
        query, key, value = (_swap(b, v) for v in (query, key, value))
        return [_swap(b, v) for v in _attention(b, query, key, value, mask, is_causal, scale)]

    types = [((batch, length, heads, size), query.dtype), ((batch, length, heads), torch.float32)]
    operands = [*(_swap(b, v) for v in (query, key, value)), *_kernel_mask(b, mask, query.dtype)]
    results = b.composite("neuron.attention", operands, types, decomposition, _kernel_config(is_causal, scale))
    return _swap(b, results[0]), _swap(b, results[1])


def attention_gradients(
    b: Builder, operands: Sequence[Value], mask: Value | None, is_causal: bool, scale: float, of_mask: bool = False
) -> tuple[Value, ...]:
    """operands: the output's gradient, query, key, value, output and log-sum-exp. of_mask: as `_gradients` has it."""
    _, query, key, value, _, _ = operands
    if of_mask or not _kernel_serves(query, key, value, mask):
        return _gradients(b, *operands, mask, is_causal, scale, of_mask)

    def decomposition(*operands):
        swapped = [_swap(b, v) for v in operands[:6]]
        mask = operands[6] if len(operands) > 6 else None
        return [_swap(b, v) for v in _gradients(b, *swapped, mask, is_causal, scale)]

    swapped = [*(_swap(b, v) for v in operands), *_kernel_mask(b, mask, query.dtype)]
    types = [(v.shape, v.dtype) for v in swapped[1:4]]
    results = b.composite("neuron.attention_backward", swapped, types, decomposition, _kernel_config(is_causal, scale))
    return tuple(_swap(b, v) for v in results)


# -- rules --------------------------------------------------------------------------------------


def _attention_meta(query, key, value, *arguments, **options):
    """The result lies in memory as the query does, like that of PyTorch's fused kernels."""
    if query.ndim == 4 and query.shape[0] == key.shape[0] and query.shape[-1] == value.shape[-1]:
        return torch.empty_like(query)
    return aten.scaled_dot_product_attention(query, key, value, *arguments, **options)


@lowers(aten.scaled_dot_product_attention.default, static=("dropout_p", "scale"), whole=True, meta=_attention_meta)
def scaled_dot_product_attention(
    b, query, key, value, attn_mask, dropout_p, is_causal, *, scale=None, enable_gqa=False
):
    query, key, value = ((b.reshape(v, (1, *v.shape)) if v.ndim == 2 else v) for v in (query, key, value))
    if enable_gqa:
        lead = torch.broadcast_shapes(query.shape[:-3], key.shape[:-3], value.shape[:-3])
        heads = math.lcm(key.shape[-3], value.shape[-3])
        query = b.broadcast_to(query, (*lead, *query.shape[-3:]))
        key, value = (
            b.broadcast_to(_repeat_heads(b, v, heads // v.shape[-3]), (*lead, heads, *v.shape[-2:]))
            for v in (key, value)
        )
    else:
        lead = torch.broadcast_shapes(query.shape[:-2], key.shape[:-2], value.shape[:-2])
        query, key, value = (b.broadcast_to(v, (*lead, *v.shape[-2:])) for v in (query, key, value))
    if dropout_p:
        output, _ = _attention(b, query, key, value, attn_mask, is_causal, attention_scale(query, scale), dropout_p)
    else:
        output, _ = attention(b, query, key, value, attn_mask, is_causal, attention_scale(query, scale))
    return finish(b, [output])


def _repeat_heads(b: Builder, x: Value, times: int) -> Value:
    if times == 1:
        return x
    *lead, heads, length, size = x.shape
    spread = b.broadcast_in_dim(
        x, (*lead, heads, times, length, size), [d for d in range(x.ndim + 1) if d != x.ndim - 2]
    )
    return b.reshape(spread, (*lead, heads * times, length, size))


@lowers(aten._scaled_dot_product_flash_attention_for_cpu.default, static=("dropout_p", "scale"))
def flash_attention(b, query, key, value, dropout_p, is_causal, *, attn_mask=None, scale=None):
    if dropout_p:
        raise NotImplementedError("the fused attention kernel has no dropout")
    return finish(b, attention(b, query, key, value, attn_mask, is_causal, attention_scale(query, scale)))


@lowers(aten._scaled_dot_product_flash_attention_for_cpu_backward.default, static=("dropout_p", "scale"))
def flash_attention_backward(
    b, grad, query, key, value, output, logsumexp, dropout_p, is_causal, *, attn_mask=None, scale=None
):
    if dropout_p:
        raise NotImplementedError("the fused attention kernel has no dropout")
    operands = [grad, query, key, value, output, logsumexp]
    return finish(b, attention_gradients(b, operands, attn_mask, is_causal, attention_scale(query, scale)))
