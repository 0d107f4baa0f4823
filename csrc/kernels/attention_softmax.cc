// SPDX-License-Identifier: Apache-2.0
#include "attention_softmax.h"

#include <algorithm>
#include <cstdint>
#include <limits>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace neuron {

bool has_avx512() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
#else
  return false;
#endif
}

bool has_avx512_bfloat16() {
#if defined(__x86_64__)
  return has_avx512() && __builtin_cpu_supports("avx512bf16");
#else
  return false;
#endif
}

}  // namespace neuron

#if defined(__x86_64__)
#pragma GCC push_options
// The instructions of AVX512_BF16 come by their intrinsics only, which nothing but BFloat16 weights uses.
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")

namespace neuron {
namespace {

using Vector = float __attribute__((vector_size(64)));
using UnalignedVector = float __attribute__((vector_size(64), aligned(4)));
constexpr int64_t kVector = 16;
constexpr float kLog2E = 1.44269504f;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

NEURON_INLINE Vector load_vector(const float* x) { return *reinterpret_cast<const UnalignedVector*>(x); }
NEURON_INLINE void store_vector(float* place, Vector x) { *reinterpret_cast<UnalignedVector*>(place) = x; }
NEURON_INLINE Vector filled(float x) { return Vector{} + x; }
// y where x is NaN.
NEURON_INLINE Vector larger(Vector x, Vector y) { return x > y ? x : y; }

// What two instructions of AVX-512 make short: the fraction of a number, and the product with a power of two, which
// also becomes 0 or NaN as it should.
struct Math {
  // 2^x, for x that is not positive but by rounding.
  static NEURON_INLINE Vector exp2(Vector x) {
    const Vector r = _mm512_maskz_reduce_ps(kAll, x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);  // in [0, 1)
    Vector y = filled(kFloorExp2[0]);
    for (int i = 1; i < 6; ++i) y = y * r + kFloorExp2[i];
    return _mm512_maskz_scalef_ps(kAll, y, x);  // times 2^floor(x)
  }
  static NEURON_INLINE void store(float* place, Vector x, Vector y) {
    store_vector(place, x);
    store_vector(place + kVector, y);
  }
  static NEURON_INLINE void store(BFloat16* place, Vector x, Vector y) {
    _mm512_storeu_si512(place, reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(y, x)));
  }
  static NEURON_INLINE Vector sum(Vector (&rows)[kVector]) {
    return reduce(rows, [](Vector x, Vector y) __attribute__((always_inline)) { return x + y; });
  }
  static NEURON_INLINE Vector largest(Vector (&rows)[kVector]) {
    return reduce(rows, [](Vector x, Vector y) __attribute__((always_inline)) { return larger(x, y); });
  }

 private:
  // Halves of two rows become one vector, and so on: row i ends as element i.
  template <class Operation>
  static NEURON_INLINE Vector reduce(Vector (&x)[kVector], Operation operation) {
    for (int i = 0; i < 8; ++i) {
      x[i] = operation(
          __builtin_shufflevector(x[i], x[i + 8], 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23),
          __builtin_shufflevector(x[i], x[i + 8], 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31));
    }
    for (int i = 0; i < 4; ++i) {
      x[i] = operation(
          __builtin_shufflevector(x[i], x[i + 4], 0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27),
          __builtin_shufflevector(x[i], x[i + 4], 4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31));
    }
    for (int i = 0; i < 2; ++i) {
      x[i] = operation(
          __builtin_shufflevector(x[i], x[i + 2], 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29),
          __builtin_shufflevector(x[i], x[i + 2], 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31));
    }
    return operation(__builtin_shufflevector(x[0], x[1], 0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30),
                     __builtin_shufflevector(x[0], x[1], 1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31));
  }

  // GCC 12 warns of its own header where the intrinsics without a mask are inlined.
  static constexpr __mmask16 kAll = 0xFFFF;
  // Polynomial of 2^r for r in [0, 1), to 1.5e-7; highest power first.
  static constexpr float kFloorExp2[] = {1.86713017e-3f, 9.01702978e-3f, 5.57999127e-2f,
                                         2.40164444e-1f, 6.93151295e-1f, 1.0f};
};

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
  const Vector largest = larger(Math::largest(rows), before);
  // -inf is the largest of a row without a visible key: its weights are to become 0, not NaN.
  const Vector centre = largest == -kInfinity ? filled(0) : largest;
  const Vector kept = Math::exp2((before - centre) * unit);
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
      const Vector weight = Math::exp2((x - centres[row]) * unit);
      const Vector next = Math::exp2((y - centres[row]) * unit);
      even += weight;
      odd += next;
      Math::store(place + i, weight, next);
    }
    rows[row] = even + odd;
  }
  store_vector(block.total + first, load_vector(block.total + first) * kept + Math::sum(rows));
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

void softmax(const ScoreBlock& block, float* weights) { softmax_rows(block, weights); }
void softmax(const ScoreBlock& block, BFloat16* weights) { softmax_rows(block, weights); }

}  // namespace neuron
#pragma GCC pop_options
#endif
