// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <limits>

#include <immintrin.h>

#include "vectorized.h"

// Vectors of NEURON_VECTOR_BYTES for the loops over blocks of scores. A file that includes this defines that, 64 or 32,
// and makes AVX-512 with AVX512_BF16, or AVX2 with fused multiply-add, the target of the compiler.
namespace neuron {
namespace {

constexpr float kLog2E = 1.44269504f;
constexpr float kInfinity = std::numeric_limits<float>::infinity();
// Polynomial of 2^r for r in [0, 1), to 1.5e-7; highest power first.
constexpr float kFloorExp2[] = {1.86713017e-3f, 9.01702978e-3f, 5.57999127e-2f, 2.40164444e-1f, 6.93151295e-1f, 1.0f};

template <class V>
NEURON_INLINE V exp2_of_fraction(V r) {
  V y = V{} + kFloorExp2[0];
  for (int i = 1; i < 6; ++i) y = y * r + kFloorExp2[i];
  return y;
}

// exp2: 2^x, for x that is not positive but by rounding; 0 far below. fold: element i is the combination by `operation`
// of all elements of row i: halves of two rows become one vector, and so on.
#if NEURON_VECTOR_BYTES == 64

using Vector = float __attribute__((vector_size(64)));
using UnalignedVector = float __attribute__((vector_size(64), aligned(4)));
using Numbers = int32_t __attribute__((vector_size(64)));
constexpr Numbers kNumbers = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

// Two instructions make it short: the fraction of a number, and the product with a power of two, which also becomes 0
// or NaN as it should. GCC 12 warns of its own header where the intrinsics without a mask are inlined.
NEURON_INLINE Vector exp2(Vector x) {
  constexpr __mmask16 kAll = 0xFFFF;
  const Vector r = _mm512_maskz_reduce_ps(kAll, x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);  // in [0, 1)
  return _mm512_maskz_scalef_ps(kAll, exp2_of_fraction(r), x);                                  // times 2^floor(x)
}

template <class Operation>
NEURON_INLINE Vector fold(Vector (&x)[16], Operation operation) {
  for (int i = 0; i < 8; ++i) {
    x[i] = operation(
        __builtin_shufflevector(x[i], x[i + 8], 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23),
        __builtin_shufflevector(x[i], x[i + 8], 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31));
  }
  for (int i = 0; i < 4; ++i) {
    x[i] =
        operation(__builtin_shufflevector(x[i], x[i + 4], 0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27),
                  __builtin_shufflevector(x[i], x[i + 4], 4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31));
  }
  for (int i = 0; i < 2; ++i) {
    x[i] =
        operation(__builtin_shufflevector(x[i], x[i + 2], 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29),
                  __builtin_shufflevector(x[i], x[i + 2], 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31));
  }
  return operation(__builtin_shufflevector(x[0], x[1], 0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30),
                   __builtin_shufflevector(x[0], x[1], 1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31));
}

#else

using Vector = float __attribute__((vector_size(32)));
using UnalignedVector = float __attribute__((vector_size(32), aligned(4)));
using Numbers = int32_t __attribute__((vector_size(32)));
constexpr Numbers kNumbers = {0, 1, 2, 3, 4, 5, 6, 7};

NEURON_INLINE Vector exp2(Vector x) {
  constexpr int kBias = 127, kMantissaBits = 23;
  const Vector floor = _mm256_floor_ps(x);
  const Numbers exponent = (__builtin_convertvector(floor, Numbers) + kBias) << kMantissaBits;
  const Vector y = exp2_of_fraction(x - floor) * reinterpret_cast<Vector>(exponent);
  return x < 1.0f - kBias ? Vector{} : y;
}

template <class Operation>
NEURON_INLINE Vector fold(Vector (&x)[8], Operation operation) {
  for (int i = 0; i < 4; ++i) {
    x[i] = operation(__builtin_shufflevector(x[i], x[i + 4], 0, 1, 2, 3, 8, 9, 10, 11),
                     __builtin_shufflevector(x[i], x[i + 4], 4, 5, 6, 7, 12, 13, 14, 15));
  }
  for (int i = 0; i < 2; ++i) {
    x[i] = operation(__builtin_shufflevector(x[i], x[i + 2], 0, 1, 8, 9, 4, 5, 12, 13),
                     __builtin_shufflevector(x[i], x[i + 2], 2, 3, 10, 11, 6, 7, 14, 15));
  }
  return operation(__builtin_shufflevector(x[0], x[1], 0, 8, 2, 10, 4, 12, 6, 14),
                   __builtin_shufflevector(x[0], x[1], 1, 9, 3, 11, 5, 13, 7, 15));
}

#endif

constexpr int64_t kVector = sizeof(Vector) / sizeof(float);

NEURON_INLINE Vector load_vector(const float* x) { return *reinterpret_cast<const UnalignedVector*>(x); }
NEURON_INLINE void store_vector(float* place, Vector x) { *reinterpret_cast<UnalignedVector*>(place) = x; }
NEURON_INLINE void store_pair(float* place, Vector x, Vector y) {
  store_vector(place, x);
  store_vector(place + kVector, y);
}
#if NEURON_VECTOR_BYTES == 64
NEURON_INLINE void store_pair(BFloat16* place, Vector x, Vector y) {
  _mm512_storeu_si512(place, reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(y, x)));
}
#endif
NEURON_INLINE Vector filled(float x) { return Vector{} + x; }
// y where x is NaN.
NEURON_INLINE Vector larger(Vector x, Vector y) { return x > y ? x : y; }
// 0 for the first elements.
NEURON_INLINE Vector without(int64_t count, Vector x) { return kNumbers < static_cast<int32_t>(count) ? Vector{} : x; }

NEURON_INLINE Vector sums(Vector (&rows)[kVector]) {
  return fold(rows, [](Vector x, Vector y) __attribute__((always_inline)) { return x + y; });
}
NEURON_INLINE Vector largest_elements(Vector (&rows)[kVector]) {
  return fold(rows, [](Vector x, Vector y) __attribute__((always_inline)) { return larger(x, y); });
}

}  // namespace
}  // namespace neuron
