// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "processor.h"
#include "vectorized.h"

namespace neuron {

// One block of scores, rows of one head against some of its keys, on its way to become weights. All arrays have room
// for a multiple of kScoreRows.
struct ScoreBlock {
  float* scores;          // (rows, columns), which is overwritten
  int64_t rows, columns;  // columns: a multiple of kScoreColumns
  int64_t stride;         // of a row of scores, and of weights
  // Row i sees the columns before min(limit, visible + i * step), if any.
  int64_t limit, visible, step;
  float scale;  // of the scores; positive
  // Added to the scaled scores: null, or as long as `visible` says from the first element of each row.
  const void* mask;
  bool mask_is_bfloat16;
  int64_t mask_row_stride, mask_column_stride;
  // State of the rows. The largest score is scaled if there is a mask; it is -inf at first.
  float* largest;
  float* total;   // sum of weights
  float* output;  // (rows, output_stride) sums of weighted values, rescaled when the largest score changes; or null
  int64_t output_size, output_stride;  // multiples of 16
};

constexpr int64_t kScoreRows = 16, kScoreColumns = 32;

// Makes weights, exp(score - largest), from scores, and brings the state of the rows up to date. Needs `has_avx2`, and
// with weights of BFloat16 `has_avx512_bfloat16`. On x86-64 only.
void softmax_avx2(const ScoreBlock& block, float* weights);
void softmax_avx512(const ScoreBlock& block, float* weights);
inline void softmax(const ScoreBlock& block, float* weights) {
  (has_avx512() ? softmax_avx512 : softmax_avx2)(block, weights);
}
void softmax(const ScoreBlock& block, BFloat16* weights);

}  // namespace neuron
