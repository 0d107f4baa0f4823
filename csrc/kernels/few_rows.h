// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "rounding.h"
#include "vectorized.h"

// Loops of the product of a few rows by a matrix, which read the matrix once, at the speed of memory.
namespace neuron {

constexpr int64_t kLanes = 16;
constexpr int64_t kStep = 2 * kLanes;  // elements that are taken at once
typedef float Vector __attribute__((vector_size(kLanes * sizeof(float))));
typedef uint32_t Words __attribute__((vector_size(kLanes * sizeof(uint32_t))));

// Two vectors of consecutive elements, in the order of `place_of`.
struct Pair {
  Vector first, second;
};

// bfloat16 comes two to a word, and stays in the order that takes no shuffle: even elements, then odd ones.
template <typename T>
constexpr int64_t place_of(int64_t i) {
  if constexpr (sizeof(T) == sizeof(float)) return i;
  return i / kStep * kStep + i % 2 * kLanes + i % kStep / 2;
}

// Vector by vector: GCC copies both at once through memory.
NEURON_INLINE void take(Pair* pair, const float* from) {
  std::memcpy(&pair->first, from, sizeof(pair->first));
  std::memcpy(&pair->second, from + kLanes, sizeof(pair->second));
}
NEURON_INLINE void take(Pair* pair, const BFloat16* from) {
  Words words;
  std::memcpy(&words, from, sizeof(words));
  const Words even = words << 16, odd = words & 0xFFFF0000u;
  std::memcpy(&pair->first, &even, sizeof(even));
  std::memcpy(&pair->second, &odd, sizeof(odd));
}
// The first `count` elements, then zeros.
template <typename T>
NEURON_INLINE void take_some(Pair* pair, const T* from, int64_t count) {
  T elements[kStep] = {};
  std::memcpy(elements, from, static_cast<size_t>(count) * sizeof(T));
  take(pair, elements);
}

// Adds neighbours: of the results, x has the first half and y the second.
NEURON_INLINE void add_neighbours(Vector* sums, const Vector& x, const Vector& y) {
  *sums = __builtin_shufflevector(x, y, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30) +
          __builtin_shufflevector(x, y, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
}

// out (rows, columns) = x (rows, inner) @ y + bias. x is float32 in the order of `place_of`, each row `stride` long,
// with zeros after its end. y is (columns, inner) or (inner, columns).
struct Product {
  const float* x;
  const void* y;
  const void* bias;  // null: none
  void* out;
  int64_t inner, columns, stride;
};

template <typename T, typename Out>
NEURON_INLINE void finish(const Product& product, int64_t row, int64_t column, float sum) {
  if (product.bias != nullptr) sum += load(static_cast<const T*>(product.bias)[column]);
  store(static_cast<Out*>(product.out) + row * product.columns + column, sum);
}

// Bytes that are asked for before they are needed: the processor's own prefetching stops at the end of a page.
template <typename T>
constexpr int64_t kAhead = sizeof(T) == sizeof(float) ? 2048 : 8192;

// Four columns of a matrix whose columns lie one after the other, or `width` of them. Memory is read from one end to
// the other: four columns in turns are four streams, which are slower.
template <typename T, typename Out, int kRows>
NEURON_INLINE void dot(const Product& product, int64_t row, int64_t column, int64_t width) {
  const float* x = product.x + row * product.stride;
  Vector sums[kRows][4];
#pragma GCC unroll 4
  for (int64_t c = 0; c < 4; ++c) {
    const T* y = static_cast<const T*>(product.y) + (column + std::min(c, width - 1)) * product.inner;
    Pair both[kRows] = {};
    const auto add = [&](int64_t i, const Pair& part) __attribute__((always_inline)) {
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
        Pair factors;
        take(&factors, x + r * product.stride + i);
        both[r].first += factors.first * part.first;
        both[r].second += factors.second * part.second;
      }
    };
    int64_t i = 0;
    Pair part;
    for (; i + kStep <= product.inner; i += kStep) {
      const char* from = reinterpret_cast<const char*>(y + i);
      for (int64_t line = 0; line < kStep * static_cast<int64_t>(sizeof(T)); line += 64)
        __builtin_prefetch(from + kAhead<T> + line, 0, 2);
      take(&part, y + i);
      add(i, part);
    }
    if (i < product.inner) {
      take_some(&part, y + i, product.inner - i);
      add(i, part);
    }
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) sums[r][c] = both[r].first + both[r].second;
  }
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
    Vector first, second, found;
    add_neighbours(&first, sums[r][0], sums[r][1]);
    add_neighbours(&second, sums[r][2], sums[r][3]);
    add_neighbours(&found, first, second);
    add_neighbours(&found, found, found);
    add_neighbours(&found, found, found);
    for (int64_t c = 0; c < width; ++c) finish<T, Out>(product, row + r, column + c, found[c]);
  }
}

template <typename T, typename Out, int kRows>
NEURON_INLINE void dots(const Product& product, int64_t row, int64_t begin, int64_t end) {
  for (int64_t column = begin; column < end; column += 4) {
    dot<T, Out, kRows>(product, row, column, std::min<int64_t>(4, end - column));
  }
}

// Of a matrix whose rows lie one after the other: sums of so many columns stay in the first-level cache.
constexpr int64_t kStrip = 1024;

// Adds `kDepth` rows of y, from row i on, to the sums of its columns `begin` to `begin + width`.
template <typename T, int kRows, int kDepth>
NEURON_INLINE void add_rows(const Product& product, float (*sums)[kStrip], int64_t row, int64_t i, int64_t begin,
                            int64_t width) {
  const T* y = static_cast<const T*>(product.y) + i * product.columns + begin;
  const int64_t ahead = 8 * product.columns;
  float factors[kRows][kDepth];
  for (int r = 0; r < kRows; ++r) {
    for (int d = 0; d < kDepth; ++d) factors[r][d] = product.x[(row + r) * product.stride + place_of<T>(i + d)];
  }
  const auto add = [&](int64_t j, const Pair* parts) __attribute__((always_inline)) {
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      Pair sum;
      take(&sum, sums[r] + j);
#pragma GCC unroll 4
      for (int d = 0; d < kDepth; ++d) {
        sum.first += factors[r][d] * parts[d].first;
        sum.second += factors[r][d] * parts[d].second;
      }
      std::memcpy(sums[r] + j, &sum.first, sizeof(sum.first));
      std::memcpy(sums[r] + j + kLanes, &sum.second, sizeof(sum.second));
    }
  };
  Pair parts[kDepth];
  int64_t j = 0;
  for (; j + kStep <= width; j += kStep) {
#pragma GCC unroll 4
    for (int d = 0; d < kDepth; ++d) {
      take(&parts[d], y + d * product.columns + j);
      __builtin_prefetch(y + d * product.columns + j + ahead, 0, 2);
    }
    add(j, parts);
  }
  if (j < width) {
    for (int d = 0; d < kDepth; ++d) take_some(&parts[d], y + d * product.columns + j, width - j);
    add(j, parts);
  }
}

template <typename T, typename Out, int kRows>
NEURON_INLINE void strips(const Product& product, int64_t row, int64_t begin, int64_t end) {
  alignas(64) float sums[kRows][kStrip];
  for (; begin < end; begin += kStrip) {
    const int64_t width = std::min(kStrip, end - begin);
    for (auto& one : sums) std::fill(one, one + round_up(width, kStep), 0.0f);
    int64_t i = 0;
    for (; i + 4 <= product.inner; i += 4) add_rows<T, kRows, 4>(product, sums, row, i, begin, width);
    for (; i < product.inner; ++i) add_rows<T, kRows, 1>(product, sums, row, i, begin, width);
    for (int r = 0; r < kRows; ++r) {
      for (int64_t j = 0; j < width; ++j) finish<T, Out>(product, row + r, begin + j, sums[r][place_of<T>(j)]);
    }
  }
}

}  // namespace neuron
