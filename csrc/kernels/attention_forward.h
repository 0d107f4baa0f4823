// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attention_operands.h"

namespace neuron {

// Dense operands: query and output (batch, length, heads, size), key and value (batch, keys, key_heads, size),
// logsumexp (batch, length, heads). No extent is 0; the scale is neither 0 nor denormal, nor inf or NaN.
struct AttentionOperands : AttentionInputs {
  void* output;
  float* logsumexp;
  bool causal;
};

// T: element type, P: of the two products. Blocked softmax over keys (Dao et al., FlashAttention), float32 sums. Keys
// that are hidden from a whole block of rows are not read: NaN in them does not reach those rows.
template <typename T, typename P>
void attention_forward(const AttentionOperands& operands);

}  // namespace neuron
