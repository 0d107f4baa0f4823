// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>

#include "attention_gradient.h"
#include "attention_vectors.h"

// With the vectors that attention_vectors.h is told to have.
namespace neuron {
namespace {

constexpr int64_t kStep = 2 * kVector;

struct Pair {
  Vector weights[2], grad_scores[2];
};

// Of one key against kStep queries.
NEURON_INLINE Pair gradients(const GradientBlock& block, int64_t key, int64_t query) {
  Pair found;
  for (int half = 0; half < 2; ++half) {
    const int64_t column = query + half * kVector, i = key * block.queries + column;
    Vector scores = load_vector(block.scores + i) * block.scale;
    if (block.mask != nullptr) scores += load_vector(block.mask + i);
    Vector weights = exp2((scores - load_vector(block.logsumexp + column)) * kLog2E);
    const int64_t hidden = block.causal ? std::clamp<int64_t>(block.first_key + key - column, 0, kVector) : 0;
    if (hidden > 0) weights = without(hidden, weights);
    found.weights[half] = weights;
    found.grad_scores[half] = weights * (load_vector(block.grad_weights + i) - load_vector(block.along + column));
    if (hidden > 0) found.grad_scores[half] = without(hidden, found.grad_scores[half]);  // not 0 times inf
  }
  return found;
}

NEURON_INLINE void score_gradients_of_float(const GradientBlock& block, float* weights, float* grad_scores) {
  for (int64_t key = 0; key < block.keys; ++key) {
    for (int64_t query = 0; query < block.queries; query += kStep) {
      const Pair x = gradients(block, key, query);
      store_pair(weights + key * block.queries + query, x.weights[0], x.weights[1]);
      store_pair(grad_scores + key * block.queries + query, x.grad_scores[0], x.grad_scores[1]);
    }
  }
  const int64_t begin = block.keys * block.queries, end = block.padded_keys * block.queries;
  std::fill(weights + begin, weights + end, 0.0f);
  std::fill(grad_scores + begin, grad_scores + end, 0.0f);
}

}  // namespace
}  // namespace neuron
