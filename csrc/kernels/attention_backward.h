// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attention_operands.h"

namespace neuron {

// Dense operands: query, output, their gradients (batch, length, heads, size), key, value and theirs (batch, keys,
// key_heads, size), logsumexp (batch, length, heads). No extent is 0; the mask is not broadcast over keys.
struct AttentionGradientOperands : AttentionInputs {
  const void *grad, *output;
  const float* logsumexp;
  void *grad_query, *grad_key, *grad_value;
  bool causal;
};

// T: element type, P: of the products. Dao et al., FlashAttention, B.4, with float32 sums.
template <typename T, typename P>
void attention_backward(const AttentionGradientOperands& operands);

}  // namespace neuron
