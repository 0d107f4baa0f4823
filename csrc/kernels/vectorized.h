// SPDX-License-Identifier: Apache-2.0
#pragma once

// Loops for the processor's vectors, and the element types they run over. For files that are compiled
// with -O3 (see CMakeLists.txt).

#include <bit>
#include <cstdint>

namespace neuron {

#if defined(__x86_64__)
// The compiler makes one copy a level, and the loader picks.
#define NEURON_VECTORIZED __attribute__((target_clones("default", "arch=x86-64-v3", "arch=x86-64-v4")))
#else
#define NEURON_VECTORIZED
#endif
#define NEURON_INLINE __attribute__((always_inline)) inline

struct BFloat16 {
  uint16_t bits;
};

NEURON_INLINE float load(float x) { return x; }
NEURON_INLINE float load(BFloat16 x) { return std::bit_cast<float>(static_cast<uint32_t>(x.bits) << 16); }
NEURON_INLINE void store(float* place, float x) { *place = x; }
// Rounds half to even; keeps NaN.
NEURON_INLINE void store(BFloat16* place, float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const uint32_t rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
  place->bits = static_cast<uint16_t>(x != x ? 0x7FC0 : rounded);
}

// exp(x) for x <= 0, to 1 ulp; 0 below the smallest normal result; NaN stays NaN. Cephes' reduction: x = n ln 2 + r.
NEURON_INLINE float exponential(float x) {
  constexpr float kLog2E = 1.44269504f, kLn2High = 0.693359375f, kLn2Low = -2.12194440e-4f, kLowest = -87.3f;
  // Adding and subtracting 1.5 * 2^23 rounds to an integer, which then stands in the low bits.
  constexpr float kRound = 12582912.0f;
  const float bounded = x < kLowest ? kLowest : x;
  const float shifted = bounded * kLog2E + kRound;
  const float n = shifted - kRound;
  const float r = (bounded - n * kLn2High) - n * kLn2Low;
  float y = 1.9875691500e-4f;
  y = y * r + 1.3981999507e-3f;
  y = y * r + 8.3334519073e-3f;
  y = y * r + 4.1665795894e-2f;
  y = y * r + 1.6666665459e-1f;
  y = y * r + 5.0000001201e-1f;
  y = y * r * r + r + 1.0f;
  const uint32_t exponent = (std::bit_cast<uint32_t>(shifted) + 127u) << 23;
  return x < kLowest ? 0.0f : y * std::bit_cast<float>(exponent);
}

}  // namespace neuron
