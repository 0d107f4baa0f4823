// SPDX-License-Identifier: Apache-2.0
#include "attention_pack.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <type_traits>

#include "transpose.h"

namespace neuron {
namespace {

// Eight words of each of eight rows, zeros beyond the source.
template <typename T>
NEURON_INLINE void load_tile(const Rows& rows, int64_t row, int64_t word, Words (&tile)[kWordTile]) {
  constexpr int64_t kPerWord = sizeof(uint32_t) / sizeof(T);
  const T* source = static_cast<const T*>(rows.data) + row * rows.stride + word * kPerWord;
  const int64_t elements = std::clamp<int64_t>(rows.size - word * kPerWord, 0, kWordTile * kPerWord);
  if (row + kWordTile <= rows.count && elements == kWordTile * kPerWord) {
    for (int64_t i = 0; i < kWordTile; ++i) tile[i] = *reinterpret_cast<const Words*>(source + i * rows.stride);
    return;
  }
  for (int64_t i = 0; i < kWordTile; ++i) {
    uint32_t words[kWordTile] = {};
    if (row + i < rows.count) std::memcpy(words, source + i * rows.stride, elements * sizeof(T));
    std::memcpy(&tile[i], words, sizeof(words));
  }
}

template <typename T, typename P>
NEURON_INLINE void pack_queries(const Rows& rows, P* packed, int64_t padded_size, bool negative) {
  for (int64_t row = 0; row < rows.count; ++row) {
    const T* source = static_cast<const T*>(rows.data) + row * rows.stride;
    P* place = packed + row * padded_size;
    if constexpr (std::is_same_v<T, P>) {
      std::memcpy(place, source, rows.size * sizeof(T));
    } else {
      for (int64_t i = 0; i < rows.size; ++i) store(&place[i], load(source[i]));
    }
    if (negative) {
      for (int64_t i = 0; i < rows.size; ++i) store(&place[i], -load(place[i]));
    }
    std::fill(place + rows.size, place + padded_size, P{});
  }
}

template <typename T, typename P>
NEURON_INLINE void pack_keys(const Rows& rows, P* packed, int64_t padded_count, int64_t padded_size) {
  constexpr int64_t kPerWord = sizeof(uint32_t) / sizeof(T);
  auto* words = reinterpret_cast<uint32_t*>(packed);
  for (int64_t row = 0; row < padded_count; row += 2 * kWordTile) {  // two tiles fill a line of the cache
    for (int64_t word = 0; word < padded_size / kPerWord; word += kWordTile) {
      Words tiles[2][kWordTile];
      for (int64_t half = 0; half < 2; ++half) {
        load_tile<T>(rows, row + half * kWordTile, word, tiles[half]);
        transpose(tiles[half]);
      }
      for (int64_t i = 0; i < kWordTile; ++i) {
        for (int64_t half = 0; half < 2; ++half) {
          const Words x = tiles[half][i];
          uint32_t* place = words + row + half * kWordTile;
          if constexpr (sizeof(T) == sizeof(P)) {
            *reinterpret_cast<Words*>(place + (word + i) * padded_count) = x;
          } else {  // BFloat16 becomes float: the lower half is the former element
            *reinterpret_cast<Words*>(place + 2 * (word + i) * padded_count) = x << 16;
            *reinterpret_cast<Words*>(place + (2 * (word + i) + 1) * padded_count) = x & 0xFFFF0000u;
          }
        }
      }
    }
  }
}

template <typename T, typename P>
NEURON_INLINE void pack_values(const Rows& rows, P* packed, int64_t padded_count, int64_t padded_size) {
  const T* source = static_cast<const T*>(rows.data);
  if constexpr (sizeof(P) == sizeof(float)) {
    pack_queries<T, P>(rows, packed, padded_size, false);
    std::fill(packed + rows.count * padded_size, packed + padded_count * padded_size, P{});
  } else {
    auto* words = reinterpret_cast<uint32_t*>(packed);
    for (int64_t row = 0; row < padded_count; row += 2, words += padded_size) {
      const T *x = source + row * rows.stride, *y = x + rows.stride;
      if (row + 1 < rows.count) {
#pragma GCC ivdep
        for (int64_t i = 0; i < rows.size; ++i) words[i] = x[i].bits | static_cast<uint32_t>(y[i].bits) << 16;
      } else if (row < rows.count) {
        for (int64_t i = 0; i < rows.size; ++i) words[i] = x[i].bits;
      } else {
        std::fill(words, words + rows.size, 0);
      }
      std::fill(words + rows.size, words + padded_size, 0);
    }
  }
}

template <typename T>
NEURON_INLINE void scaled(const float* sums, float factor, T* output, int64_t size) {
  for (int64_t i = 0; i < size; ++i) store(&output[i], sums[i] * factor);
}

// Clones for several processors cannot be templates.
#define NEURON_PACKING(T, P)                                                                                        \
  NEURON_VECTORIZED void queries(const Rows& rows, const T*, P* packed, int64_t padded_size, bool negative) {       \
    pack_queries<T, P>(rows, packed, padded_size, negative);                                                        \
  }                                                                                                                 \
  NEURON_VECTORIZED void keys(const Rows& rows, const T*, P* packed, int64_t padded_count, int64_t padded_size) {   \
    pack_keys<T, P>(rows, packed, padded_count, padded_size);                                                       \
  }                                                                                                                 \
  NEURON_VECTORIZED void values(const Rows& rows, const T*, P* packed, int64_t padded_count, int64_t padded_size) { \
    pack_values<T, P>(rows, packed, padded_count, padded_size);                                                     \
  }

NEURON_PACKING(float, float)
NEURON_PACKING(BFloat16, BFloat16)
NEURON_PACKING(BFloat16, float)

}  // namespace

NEURON_VECTORIZED void scale_row(const float* sums, float factor, float* output, int64_t size) {
  scaled(sums, factor, output, size);
}
NEURON_VECTORIZED void scale_row(const float* sums, float factor, BFloat16* output, int64_t size) {
  scaled(sums, factor, output, size);
}

template <typename T, typename P>
void Packing<T, P>::queries(const Rows& rows, P* packed, int64_t padded_size, bool negative) {
  neuron::queries(rows, static_cast<const T*>(nullptr), packed, padded_size, negative);
}
template <typename T, typename P>
void Packing<T, P>::keys(const Rows& rows, P* packed, int64_t padded_count, int64_t padded_size) {
  neuron::keys(rows, static_cast<const T*>(nullptr), packed, padded_count, padded_size);
}
template <typename T, typename P>
void Packing<T, P>::values(const Rows& rows, P* packed, int64_t padded_count, int64_t padded_size) {
  neuron::values(rows, static_cast<const T*>(nullptr), packed, padded_count, padded_size);
}

template struct Packing<float, float>;
template struct Packing<BFloat16, BFloat16>;
template struct Packing<BFloat16, float>;

}  // namespace neuron
