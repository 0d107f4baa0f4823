// SPDX-License-Identifier: Apache-2.0
#if defined(__x86_64__)

#include "float_parts.h"

#include "rounding.h"

namespace neuron {
namespace {

NEURON_AMX_INLINE __m512i bits(__m512 x) { return _mm512_castps_si512(x); }
NEURON_AMX_INLINE __m512i magnitude(__m512 x) { return _mm512_and_si512(bits(x), _mm512_set1_epi32(0x7FFFFFFF)); }

// The first `count` elements, then zeros.
NEURON_AMX_INLINE __m512 load_some(const float* from, int64_t count) {
  if (count >= 16) return _mm512_loadu_ps(from);
  return _mm512_maskz_loadu_ps(static_cast<__mmask16>(count <= 0 ? 0 : (1u << count) - 1), from);
}

// Takes from x its nearest bfloat16, whose bits are the upper half of the result.
NEURON_AMX_INLINE __m512i take_part(__m512* x) {
  const __m512i rounded = _mm512_add_epi32(bits(*x), _mm512_set1_epi32(0x8000));
  const __m512i part = _mm512_and_si512(rounded, _mm512_set1_epi32(static_cast<int>(0xFFFF0000u)));
  *x = _mm512_sub_ps(*x, _mm512_castsi512_ps(part));
  return part;
}

// Pairs of the upper halves of x and y.
NEURON_AMX_INLINE void store_pairs(char* to, __m512i x, __m512i y) {
  _mm512_store_si512(to, _mm512_mask_blend_epi16(0xAAAAAAAAu, _mm512_srli_epi32(x, 16), y));
}

// A line of pairs of x and y, to each part's tile.
NEURON_AMX_INLINE void store_parts(char* to, __m512 x, __m512 y) {
  for (int part = 0; part < 2; ++part, to += kPartBytes) {
    const __m512i first = take_part(&x), second = take_part(&y);
    store_pairs(to, first, second);
  }
  // No more than 8 bits are left.
  store_pairs(to, bits(x), bits(y));
}

// 16 elements of each of 16 vectors `stride` apart, transposed. `vectors` and `count` there are, the rest is zero.
NEURON_AMX_INLINE void load_transposed(const float* from, int64_t stride, int64_t vectors, int64_t count, __m512* to) {
  __m512i x[16];
  if (vectors >= 16 && count >= 16) {
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) x[i] = _mm512_loadu_si512(from + i * stride);
  } else {
    for (int i = 0; i < 16; ++i) {
      x[i] = i < vectors ? bits(load_some(from + i * stride, count)) : _mm512_setzero_si512();
    }
  }
  transpose_lines(x);
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) to[i] = _mm512_castsi512_ps(x[i]);
}

}  // namespace

NEURON_AMX void pack_left(const Lines<float>& lines, int64_t count, int64_t inner, char* to, Magnitudes* magnitudes) {
  const int64_t steps = divide_up(inner, kPartsStep);
  if (lines.whole) {
    __m512i most[kPanel] = {};
    for (int64_t step = 0; step < steps; ++step, to += kPartsStepBytes) {
      const int64_t i = step * kPartsStep;
      for (int64_t line = 0; line < kPanel; ++line) {
        const float* from = lines.data + line * lines.stride + i;
        const int64_t left = line < count ? inner - i : 0;
        const __m512 x = load_some(from, left), y = load_some(from + 16, left - 16);
        most[line] = _mm512_max_epi32(most[line], _mm512_max_epi32(magnitude(x), magnitude(y)));
        store_parts(to + line * kLineBytes, x, y);
      }
    }
    for (const __m512i& line : most) magnitudes->add(_mm512_reduce_max_epi32(line));
    return;
  }
  for (int64_t tile = 0; tile < 2; ++tile) {
    const int64_t first = tile * kTileLines;
    __m512i most[kTileLines] = {};
    for (int64_t step = 0; step < steps; ++step) {
      const int64_t i = step * kPartsStep;
      __m512 x[kTileLines], y[kTileLines];
      const float* from = lines.data + i * lines.stride + first;
      load_transposed(from, lines.stride, inner - i, count - first, x);
      load_transposed(from + 16 * lines.stride, lines.stride, inner - i - 16, count - first, y);
      char* at = to + step * kPartsStepBytes + tile * kTileBytes;
      for (int line = 0; line < kTileLines; ++line, at += kLineBytes) {
        most[line] = _mm512_max_epi32(most[line], _mm512_max_epi32(magnitude(x[line]), magnitude(y[line])));
        store_parts(at, x[line], y[line]);
      }
    }
    for (const __m512i& line : most) magnitudes->add(_mm512_reduce_max_epi32(line));
  }
}

NEURON_AMX void pack_right(const Lines<float>& lines, int64_t count, int64_t inner, char* to, Magnitudes* magnitudes) {
  const int64_t steps = divide_up(inner, kPartsStep);
  for (int64_t tile = 0; tile < 2; ++tile) {
    const int64_t first = tile * kTileLines;
    __m512i most = _mm512_setzero_si512();
    for (int64_t step = 0; step < steps; ++step) {
      const int64_t i = step * kPartsStep;
      __m512 elements[kPartsStep];
      if (lines.whole) {
        const float* from = lines.data + first * lines.stride + i;
        load_transposed(from, lines.stride, count - first, inner - i, elements);
        load_transposed(from + 16, lines.stride, count - first, inner - i - 16, elements + 16);
      } else {
        const float* from = lines.data + i * lines.stride + first;
        for (int64_t e = 0; e < kPartsStep; ++e) {
          elements[e] = load_some(from + e * lines.stride, i + e < inner ? count - first : 0);
        }
      }
      char* at = to + step * kPartsStepBytes + tile * kTileBytes;
      for (int pair = 0; pair < kTileLines; ++pair, at += kLineBytes) {
        const __m512 x = elements[pair], y = elements[pair + 16];
        most = _mm512_max_epi32(most, _mm512_max_epi32(magnitude(x), magnitude(y)));
        store_parts(at, x, y);
      }
    }
    alignas(64) int32_t of_lines[kTileLines];
    _mm512_store_si512(of_lines, most);
    for (const int32_t line : of_lines) magnitudes->add(line);
  }
}

}  // namespace neuron

#endif  // defined(__x86_64__)
