// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>

#include "attention_softmax.h"
#include "attention_vectors.h"

// With the vectors that attention_vectors.h is told to have.
namespace neuron {
namespace {

template <typename M>
NEURON_INLINE void add_mask(float* scores, const M* mask, int64_t stride, float scale, int64_t count) {
  if (stride == 0) {
    const float added = load(*mask);
    for (int64_t i = 0; i < count; ++i) scores[i] = scores[i] * scale + added;
  } else {
    for (int64_t i = 0; i < count; ++i) scores[i] = scores[i] * scale + load(mask[i]);
  }
}

// Of kVector rows. unit: log2(e) times the scale of the scores.
template <typename P>
NEURON_INLINE void softmax_group(const ScoreBlock& block, int64_t first, float unit, P* weights) {
  const float* scores = block.scores + first * block.stride;
  Vector rows[kVector];
  for (int64_t row = 0; row < kVector; ++row) {
    const float* line = scores + row * block.stride;
    Vector even = load_vector(line), odd = load_vector(line + kVector);
    for (int64_t i = 2 * kVector; i < block.columns; i += 2 * kVector) {
      even = larger(load_vector(line + i), even);
      odd = larger(load_vector(line + i + kVector), odd);
    }
    rows[row] = larger(odd, even);
  }
  const Vector before = load_vector(block.largest + first);
  const Vector largest = larger(largest_elements(rows), before);
  // -inf is the largest of a row without a visible key: its weights are to become 0, not NaN.
  const Vector centre = largest == -kInfinity ? filled(0) : largest;
  const Vector kept = exp2((before - centre) * unit);
  store_vector(block.largest + first, largest);
  float centres[kVector], factors[kVector];
  store_vector(centres, centre);
  store_vector(factors, kept);
  for (int64_t row = 0; row < kVector && block.output != nullptr; ++row) {
    if (factors[row] == 1) continue;
    float* output = block.output + (first + row) * block.output_stride;
    for (int64_t i = 0; i < block.output_size; i += kVector) {
      store_vector(output + i, load_vector(output + i) * factors[row]);
    }
  }
  for (int64_t row = 0; row < kVector; ++row) {
    const float* line = scores + row * block.stride;
    P* place = weights + (first + row) * block.stride;
    Vector even = {}, odd = {};
    for (int64_t i = 0; i < block.columns; i += 2 * kVector) {
      // Scaled before the subtraction, large scores would lose the distance, or overflow.
      const Vector x = load_vector(line + i), y = load_vector(line + i + kVector);
      const Vector weight = exp2((x - centres[row]) * unit);
      const Vector next = exp2((y - centres[row]) * unit);
      even += weight;
      odd += next;
      store_pair(place + i, weight, next);
    }
    rows[row] = even + odd;
  }
  store_vector(block.total + first, load_vector(block.total + first) * kept + sums(rows));
}

template <typename P>
NEURON_INLINE void softmax_rows(const ScoreBlock& block, P* weights) {
  for (int64_t row = 0; row < block.rows; ++row) {
    float* scores = block.scores + row * block.stride;
    const int64_t visible = std::max<int64_t>(0, std::min(block.limit, block.visible + row * block.step));
    if (visible < block.columns) std::fill(scores + visible, scores + block.columns, -kInfinity);
    if (block.mask == nullptr) continue;
    const int64_t offset = row * block.mask_row_stride;
    if (block.mask_is_bfloat16) {
      add_mask(scores, static_cast<const BFloat16*>(block.mask) + offset, block.mask_column_stride, block.scale,
               visible);
    } else {
      add_mask(scores, static_cast<const float*>(block.mask) + offset, block.mask_column_stride, block.scale, visible);
    }
  }
  const float unit = kLog2E * (block.mask == nullptr ? block.scale : 1.0f);
  for (int64_t row = 0; row < block.rows; row += kVector) softmax_group(block, row, unit, weights);
}

}  // namespace
}  // namespace neuron
