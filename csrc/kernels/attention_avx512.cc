// SPDX-License-Identifier: Apache-2.0
#if defined(__x86_64__)
#include <algorithm>
#include <cstdint>
#include <limits>

#include <immintrin.h>

#include "attention_gradient.h"
#include "attention_softmax.h"

#pragma GCC push_options
// The instructions of AVX512_BF16 come by their intrinsics only, which nothing but results of BFloat16 uses.
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")
#define NEURON_VECTOR_BYTES 64
#include "attention_gradient_loops.h"
#include "attention_softmax_loops.h"

namespace neuron {
namespace {

NEURON_INLINE void store_paired(BFloat16* place, Vector x, Vector y) {
  const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6, 21,
                                         5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  const __m512i both = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(y, x));
  _mm512_storeu_si512(place, _mm512_maskz_permutexvar_epi16(~__mmask32{0}, order, both));
}

}  // namespace

void softmax_avx512(const ScoreBlock& block, float* weights) { softmax_rows(block, weights); }
void softmax(const ScoreBlock& block, BFloat16* weights) { softmax_rows(block, weights); }

void score_gradients_avx512(const GradientBlock& block, float* weights, float* grad_scores) {
  score_gradients_of_float(block, weights, grad_scores);
}

void score_gradients(const GradientBlock& block, BFloat16* weights, BFloat16* grad_scores, BFloat16* paired) {
  for (int64_t key = 0; key < block.padded_keys; key += 2) {
    for (int64_t query = 0; query < block.queries; query += kStep) {
      const Pair x = key < block.keys ? gradients(block, key, query) : Pair{};
      const Pair y = key + 1 < block.keys ? gradients(block, key + 1, query) : Pair{};
      const int64_t i = key * block.queries + query, j = i + block.queries;
      store_pair(weights + i, x.weights[0], x.weights[1]);
      store_pair(weights + j, y.weights[0], y.weights[1]);
      store_pair(grad_scores + i, x.grad_scores[0], x.grad_scores[1]);
      store_pair(grad_scores + j, y.grad_scores[0], y.grad_scores[1]);
      for (int half = 0; half < 2; ++half) {
        store_paired(paired + key * block.queries + 2 * (query + half * kVector), x.grad_scores[half],
                     y.grad_scores[half]);
      }
    }
  }
}

}  // namespace neuron
#pragma GCC pop_options
#endif
