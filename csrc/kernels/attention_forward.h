// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace neuron {

// Dense operands: query and output (batch, length, heads, size), key and value (batch, keys, key_heads, size),
// logsumexp (batch, length, heads). heads is a multiple of key_heads; no extent is 0.
struct AttentionOperands {
  const void *query, *key, *value;
  void* output;
  float* logsumexp;
  int64_t batch, length, heads, key_heads, keys, size;
  // Of the element type of the query, or null; the strides of (batch, heads, length, keys) may be 0.
  const void* mask;
  int64_t mask_strides[4];
  bool causal;
  float scale;  // neither 0 nor denormal, nor inf or NaN
};

// T: element type, P: of the two products. Blocked softmax over keys (Dao et al., FlashAttention), float32 sums. Keys
// that are hidden from a whole block of rows are not read: NaN in them does not reach those rows.
template <typename T, typename P>
void attention_forward(const AttentionOperands& operands);

}  // namespace neuron
