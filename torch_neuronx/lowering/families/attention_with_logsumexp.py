# SPDX-License-Identifier: Apache-2.0
"""The fused attention operators that name no device, forward and backward: they return the log-sum-exp.

Partial results over blocks of keys are joined by it: ring attention (context parallelism) calls these operators, and
DTensor shards them. `_scaled_dot_product_efficient_attention` also has a mask, with its gradient, and values of
another size than the keys. Results that are numbers are read off PyTorch's meta kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ...stablehlo import Builder, Value
from ..registry import LoweringError, lowers
from .attention import attention, attention_gradients, attention_scale
from .normalization import finish

aten = torch.ops.aten


def _refuse(b: Builder, dropout_p: float, debug_mask: bool = False) -> None:
    if dropout_p:
        raise LoweringError(
            f"{b.location.operator}: fused attention has no dropout on the device, but dropout_p is {dropout_p}; pass "
            "0, or call torch.nn.functional.scaled_dot_product_attention, which has it"
        )
    if debug_mask:
        raise LoweringError(f"{b.location.operator}: the device keeps no probabilities; pass return_debug_mask=False")


def _with_zeros(b: Builder, results: Sequence[Value | None]) -> list[Value | None]:
    """The results, then zeros: the state of a random generator that is not asked, and a mask that is not kept."""
    rest = b.out[len(results) :]
    zeros = [b.constant(0, m.dtype, tuple(m.shape)) if isinstance(m, torch.Tensor) else None for m in rest]
    return [*results, *zeros]


def _finish_first(b: Builder, values: Sequence[Value]) -> list[Value]:
    return [
        b.reshape(b.convert(value, meta.dtype), tuple(meta.shape)) for value, meta in zip(values, b.out, strict=False)
    ]


@lowers(aten._scaled_dot_product_flash_attention.default, static=("dropout_p", "scale"))
def flash_attention(
    b: Builder, query: Value, key: Value, value: Value, dropout_p, is_causal, return_debug_mask, *, scale=None
):
    _refuse(b, dropout_p, return_debug_mask)
    results = attention(b, query, key, value, None, is_causal, attention_scale(query, scale))
    return _with_zeros(b, _finish_first(b, results))


@lowers(aten._scaled_dot_product_flash_attention_backward.default, static=("dropout_p", "scale"))
def flash_attention_backward(
    b: Builder,
    grad_out: Value,
    query: Value,
    key: Value,
    value: Value,
    out: Value,
    logsumexp: Value,
    cum_seq_q: Any,
    cum_seq_k: Any,
    max_q: int,
    max_k: int,
    dropout_p,
    is_causal,
    philox_seed: Any,
    philox_offset: Any,
    *,
    scale=None,
):
    _refuse(b, dropout_p)
    operands = [grad_out, query, key, value, out, logsumexp]
    return finish(b, attention_gradients(b, operands, None, is_causal, attention_scale(query, scale)))


@lowers(aten._scaled_dot_product_efficient_attention.default, static=("dropout_p", "scale"))
def efficient_attention(
    b: Builder,
    query: Value,
    key: Value,
    value: Value,
    attn_bias,
    compute_log_sumexp,
    dropout_p,
    is_causal,
    *,
    scale=None,
):
    _refuse(b, dropout_p)
    output, logsumexp = attention(b, query, key, value, attn_bias, is_causal, attention_scale(query, scale))
    (output,) = _finish_first(b, [output])
    if not compute_log_sumexp:
        return _with_zeros(b, [output])
    # PyTorch's is longer than the queries: the next multiple of 32.
    meta = b.out[1]
    logsumexp = b.convert(logsumexp, meta.dtype)
    padding = meta.shape[-1] - logsumexp.shape[-1]
    return _with_zeros(b, [output, b.pad(logsumexp, [0, 0, 0], [0, 0, padding])])


@lowers(aten._scaled_dot_product_efficient_attention_backward.default, static=("dropout_p", "scale"))
def efficient_attention_backward(
    b: Builder,
    grad_out: Value,
    query: Value,
    key: Value,
    value: Value,
    attn_bias,
    out: Value,
    logsumexp: Value,
    philox_seed: Any,
    philox_offset: Any,
    dropout_p,
    grad_input_mask: Sequence[bool],
    is_causal,
    *,
    scale=None,
):
    _refuse(b, dropout_p)
    operands = [grad_out, query, key, value, out, b.slice_dim(logsumexp, 2, 0, query.shape[2])]
    of_mask = attn_bias is not None and grad_input_mask[3]
    gradients = attention_gradients(b, operands, attn_bias, is_causal, attention_scale(query, scale), of_mask)
    return finish(b, gradients if of_mask else [*gradients, None])
