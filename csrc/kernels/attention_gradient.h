// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "processor.h"
#include "vectorized.h"

namespace neuron {

// Scores of keys (rows) against queries (columns), and the gradients of their weights, on the way to become weights
// and gradients of scores.
struct GradientBlock {
  const float *scores, *grad_weights;  // (keys, queries)
  int64_t keys, padded_keys;           // results of the rows beyond `keys` become 0
  int64_t queries;                     // a multiple of 32, and the stride of all matrices
  int64_t first_key;                   // relative to the first query: key i is hidden from the queries before it
  bool causal;
  float scale;             // of the scores
  const float* mask;       // (keys, queries), added to the scaled scores; or null
  const float* logsumexp;  // of every query
  const float* along;      // of every query: the product of the output and its gradient
};

// weights = exp(scores * scale + mask - logsumexp); grad_scores = weights * (grad_weights - along). `paired` is
// grad_scores once more, as the right operand of a product that contracts keys ("VNNI"); for float that is grad_scores
// itself. Needs `has_avx2`, and for BFloat16 `has_avx512_bfloat16`. On x86-64 only.
void score_gradients_avx2(const GradientBlock& block, float* weights, float* grad_scores);
void score_gradients_avx512(const GradientBlock& block, float* weights, float* grad_scores);
inline void score_gradients(const GradientBlock& block, float* weights, float* grad_scores, float*) {
  (has_avx512() ? score_gradients_avx512 : score_gradients_avx2)(block, weights, grad_scores);
}
void score_gradients(const GradientBlock& block, BFloat16* weights, BFloat16* grad_scores, BFloat16* paired);

}  // namespace neuron
