// SPDX-License-Identifier: Apache-2.0
#if defined(__x86_64__)
#include <algorithm>
#include <cstdint>
#include <limits>
#include <type_traits>

#include <immintrin.h>

#include "attention_gradient.h"
#include "attention_products.h"
#include "attention_softmax.h"

#pragma GCC push_options
#pragma GCC target("avx2,fma")
#define NEURON_VECTOR_BYTES 32
#include "attention_gradient_loops.h"
#include "attention_softmax_loops.h"

namespace neuron {
namespace {

// So many vectors and rows of sums as there are registers for.
constexpr int kVectors = 2, kRows = 6;

// c = a @ b, of `rows` rows and kVectors vectors of columns.
template <int rows>
NEURON_INLINE void multiply_rows(int64_t inner, int64_t a_stride, int64_t b_stride, int64_t c_stride, bool add,
                                 const float* a, const float* b, float* c) {
  Vector total[rows][kVectors] = {};
  if (add) {
#pragma GCC unroll 16
    for (int i = 0; i < rows * kVectors; ++i) {
      total[i / kVectors][i % kVectors] = load_vector(c + i / kVectors * c_stride + i % kVectors * kVector);
    }
  }
  for (int64_t i = 0; i < inner; ++i, b += b_stride) {
    const Vector factors[kVectors] = {load_vector(b), load_vector(b + kVector)};
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r) {
      const float factor = a[r * a_stride + i];
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) total[r][v] += factor * factors[v];
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < rows * kVectors; ++i) {
    store_vector(c + i / kVectors * c_stride + i % kVectors * kVector, total[i / kVectors][i % kVectors]);
  }
}

}  // namespace

void multiply_avx2(int64_t m, int64_t n, int64_t k, int64_t a_stride, int64_t b_stride, int64_t c_stride, bool add,
                   const float* a, const float* b, float* c) {
  for (int64_t column = 0; column < n; column += kVectors * kVector) {
    int64_t row = 0;
    const auto multiply = [&](auto rows) __attribute__((always_inline)) {
      for (; row + rows <= m; row += rows) {
        multiply_rows<rows>(k, a_stride, b_stride, c_stride, add, a + row * a_stride, b + column,
                            c + row * c_stride + column);
      }
    };
    multiply(std::integral_constant<int, kRows>());
    multiply(std::integral_constant<int, 4>());
    multiply(std::integral_constant<int, 2>());
  }
}

void softmax_avx2(const ScoreBlock& block, float* weights) { softmax_rows(block, weights); }

void score_gradients_avx2(const GradientBlock& block, float* weights, float* grad_scores) {
  score_gradients_of_float(block, weights, grad_scores);
}

}  // namespace neuron
#pragma GCC pop_options
#endif
