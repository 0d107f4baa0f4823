// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace neuron {

// Dense operands: query, output, their gradients (batch, length, heads, size), key, value and theirs (batch, keys,
// key_heads, size), logsumexp (batch, length, heads). heads is a multiple of key_heads; no extent is 0.
struct AttentionGradientOperands {
  const void *grad, *query, *key, *value, *output;
  const float* logsumexp;
  void *grad_query, *grad_key, *grad_value;
  int64_t batch, length, heads, key_heads, keys, size;
  // Of the element type of the query, or null; the strides of (batch, heads, length, keys) may be 0, but the last.
  const void* mask;
  int64_t mask_strides[4];
  bool causal;
  float scale;
};

// T: element type, P: of the products. Dao et al., FlashAttention, B.4, with float32 sums.
template <typename T, typename P>
void attention_backward(const AttentionGradientOperands& operands);

}  // namespace neuron
