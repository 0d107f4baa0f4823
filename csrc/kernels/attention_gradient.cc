// SPDX-License-Identifier: Apache-2.0
#include "attention_gradient.h"

#include <algorithm>

#if defined(__x86_64__)
#include <immintrin.h>
#pragma GCC push_options
// The instructions of AVX512_BF16 come by their intrinsics only, which nothing but BFloat16 results use.
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")
#include "attention_vectors.h"

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
    Vector weights = Math::exp2((scores - load_vector(block.logsumexp + column)) * kLog2E);
    const int64_t hidden = block.causal ? std::clamp<int64_t>(block.first_key + key - column, 0, kVector) : 0;
    if (hidden > 0) weights = _mm512_maskz_mov_ps(static_cast<__mmask16>(0xFFFFu << hidden), weights);
    found.weights[half] = weights;
    found.grad_scores[half] = weights * (load_vector(block.grad_weights + i) - load_vector(block.along + column));
    if (hidden > 0) {  // not 0 times inf
      found.grad_scores[half] = _mm512_maskz_mov_ps(static_cast<__mmask16>(0xFFFFu << hidden), found.grad_scores[half]);
    }
  }
  return found;
}

NEURON_INLINE void store_paired(BFloat16* place, Vector x, Vector y) {
  const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6, 21,
                                         5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  const __m512i both = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(y, x));
  _mm512_storeu_si512(place, _mm512_maskz_permutexvar_epi16(~__mmask32{0}, order, both));
}

}  // namespace

void score_gradients(const GradientBlock& block, float* weights, float* grad_scores, float*) {
  for (int64_t key = 0; key < block.keys; ++key) {
    for (int64_t query = 0; query < block.queries; query += kStep) {
      const Pair x = gradients(block, key, query);
      Math::store(weights + key * block.queries + query, x.weights[0], x.weights[1]);
      Math::store(grad_scores + key * block.queries + query, x.grad_scores[0], x.grad_scores[1]);
    }
  }
  const int64_t begin = block.keys * block.queries, end = block.padded_keys * block.queries;
  std::fill(weights + begin, weights + end, 0.0f);
  std::fill(grad_scores + begin, grad_scores + end, 0.0f);
}

void score_gradients(const GradientBlock& block, BFloat16* weights, BFloat16* grad_scores, BFloat16* paired) {
  for (int64_t key = 0; key < block.padded_keys; key += 2) {
    for (int64_t query = 0; query < block.queries; query += kStep) {
      const Pair x = key < block.keys ? gradients(block, key, query) : Pair{};
      const Pair y = key + 1 < block.keys ? gradients(block, key + 1, query) : Pair{};
      const int64_t i = key * block.queries + query, j = i + block.queries;
      Math::store(weights + i, x.weights[0], x.weights[1]);
      Math::store(weights + j, y.weights[0], y.weights[1]);
      Math::store(grad_scores + i, x.grad_scores[0], x.grad_scores[1]);
      Math::store(grad_scores + j, y.grad_scores[0], y.grad_scores[1]);
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
