// SPDX-License-Identifier: Apache-2.0
#pragma once

// Loops for the processor's vectors, and the element types they run over. For files that are compiled
// with -O3 and OpenMP (see CMakeLists.txt).

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

}  // namespace neuron
