// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <type_traits>

#include <ATen/native/CPUBlas.h>

#include "processor.h"
#include "rounding.h"
#include "vectorized.h"

// Products of packed blocks (attention_pack.h) for attention forward and backward: by oneDNN's generated code, or where
// it has none our own.
namespace neuron {

constexpr int64_t kLine = 64;  // bytes
// Padding of head sizes, for products of P.
template <typename P>
constexpr int64_t kSizeGranularity = std::is_same_v<P, float> ? 16 : 32;

// Lets `place` begin at `next`, which moves behind its `count` elements to the next line.
template <typename T>
void take(T*& place, int64_t count, char*& next) {
  place = reinterpret_cast<T*>(next);
  next += round_up(count * sizeof(T), kLine);
}

// c (m, n) = a (m, k) times b (k, n), plus c if `add`. m, n and k are multiples of 16.
void multiply_avx2(int64_t m, int64_t n, int64_t k, int64_t a_stride, int64_t b_stride, int64_t c_stride, bool add,
                   const float* a, const float* b, float* c);
inline void multiply(int64_t m, int64_t n, int64_t k, int64_t a_stride, int64_t b_stride, int64_t c_stride, bool add,
                     const float* a, const float* b, float* c) {
  if (has_onednn_blocks()) {
    at::native::cpublas::brgemm(m, n, k, a_stride, b_stride, c_stride, add, a, b, c);
  } else {
    multiply_avx2(m, n, k, a_stride, b_stride, c_stride, add, a, b, c);
  }
}
inline void multiply(int64_t m, int64_t n, int64_t k, int64_t a_stride, int64_t b_stride, int64_t c_stride, bool add,
                     const BFloat16* a, const BFloat16* b, float* c) {
  at::native::cpublas::brgemm(m, n, k, a_stride, b_stride, c_stride, add, reinterpret_cast<const at::BFloat16*>(a),
                              reinterpret_cast<const at::BFloat16*>(b), c);
}

// oneDNN remembers in each thread which tiles it has configured, and others of its kernels configure their own.
template <typename P>
struct FreeTiles {
  FreeTiles() { release(); }
  ~FreeTiles() { release(); }
  static void release() {
    if constexpr (std::is_same_v<P, BFloat16>) at::native::cpublas::brgemm_release();
  }
};

}  // namespace neuron
