// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

// AMX: tiles of 16 lines of 64 bytes, and products of two of them. What uses them needs `has_amx`.
namespace neuron {

#if defined(__x86_64__)

#define NEURON_AMX __attribute__((target("amx-tile,amx-bf16,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")))
#define NEURON_AMX_INLINE NEURON_AMX __attribute__((always_inline)) inline

constexpr int64_t kTileLines = 16;
constexpr int64_t kLineBytes = 64;
constexpr int64_t kTileBytes = kTileLines * kLineBytes;

// All tiles have their full size, while this lives.
class Tiles {
 public:
  NEURON_AMX Tiles() {
    alignas(64) struct {
      uint8_t palette = 1, start_row = 0, reserved[14] = {};
      uint16_t line_bytes[16] = {};
      uint8_t lines[16] = {};
    } configuration;
    for (int tile = 0; tile < 8; ++tile) {
      configuration.line_bytes[tile] = kLineBytes;
      configuration.lines[tile] = kTileLines;
    }
    // The compiler believes that the instruction reads eight bytes.
    asm volatile("" : : "r"(&configuration) : "memory");
    _tile_loadconfig(&configuration);
  }
  NEURON_AMX ~Tiles() { _tile_release(); }
  Tiles(const Tiles&) = delete;
  Tiles& operator=(const Tiles&) = delete;
};

// Transposes 16 lines of 16 elements of 4 bytes.
NEURON_AMX_INLINE void transpose_lines(__m512i* x) {
  __m512i y[kTileLines];
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
    const __m512i a = _mm512_unpacklo_epi32(x[i], x[i + 1]), b = _mm512_unpackhi_epi32(x[i], x[i + 1]);
    const __m512i c = _mm512_unpacklo_epi32(x[i + 2], x[i + 3]), d = _mm512_unpackhi_epi32(x[i + 2], x[i + 3]);
    y[i] = _mm512_unpacklo_epi64(a, c);
    y[i + 1] = _mm512_unpackhi_epi64(a, c);
    y[i + 2] = _mm512_unpacklo_epi64(b, d);
    y[i + 3] = _mm512_unpackhi_epi64(b, d);
  }
  // y[4 i + j] has, in its quarter q, element 4 q + j of lines 4 i to 4 i + 3.
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {
    const __m512i a = _mm512_shuffle_i32x4(y[j], y[4 + j], 0x88), b = _mm512_shuffle_i32x4(y[j], y[4 + j], 0xDD);
    const __m512i c = _mm512_shuffle_i32x4(y[8 + j], y[12 + j], 0x88);
    const __m512i d = _mm512_shuffle_i32x4(y[8 + j], y[12 + j], 0xDD);
    x[j] = _mm512_shuffle_i32x4(a, c, 0x88);
    x[8 + j] = _mm512_shuffle_i32x4(a, c, 0xDD);
    x[4 + j] = _mm512_shuffle_i32x4(b, d, 0x88);
    x[12 + j] = _mm512_shuffle_i32x4(b, d, 0xDD);
  }
}

#endif  // defined(__x86_64__)

}  // namespace neuron
