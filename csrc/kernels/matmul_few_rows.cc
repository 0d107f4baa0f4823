// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>

#include "kernel_call.h"
#include "shared_loop.h"
#include "vectorized.h"

// The product of a few rows by a matrix, which is read once, at the speed of memory: see
// torch_neuronx/lowering/families/contractions.py. ATen reads bfloat16 at a third to two thirds of it.
namespace neuron {
namespace {

constexpr int64_t kLanes = 16;
constexpr int64_t kStep = 2 * kLanes;  // elements that are taken at once
typedef float Vector __attribute__((vector_size(kLanes * sizeof(float))));
typedef uint32_t Words __attribute__((vector_size(kLanes * sizeof(uint32_t))));
typedef int32_t Lanes __attribute__((vector_size(kLanes * sizeof(int32_t))));

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

NEURON_INLINE void take(Pair* pair, const float* from) { std::memcpy(pair, from, sizeof(*pair)); }
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

template <typename T>
NEURON_INLINE void finish(const Product& product, int64_t row, int64_t column, float sum) {
  if (product.bias != nullptr) sum += load(static_cast<const T*>(product.bias)[column]);
  store(static_cast<T*>(product.out) + row * product.columns + column, sum);
}

// Elements of y that several rows take in turns.
constexpr int64_t kBlock = 8192;
// Elements of y that are worth a second thread's while.
constexpr int64_t kPiece = 16384;
constexpr int64_t kFarthest = 16384;

// Four columns of a matrix whose columns lie one after the other, or `width` of them.
template <typename T, int kRows>
NEURON_INLINE void dot(const Product& product, int64_t row, int64_t column, int64_t width) {
  const T* y[4];
  for (int64_t c = 0; c < 4; ++c)
    y[c] = static_cast<const T*>(product.y) + (column + std::min(c, width - 1)) * product.inner;
  const float* x = product.x + row * product.stride;
  Vector sums[kRows][4] = {};
  const auto add = [&](int64_t i, const Pair* parts) __attribute__((always_inline)) {
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      Pair factors;
      take(&factors, x + r * product.stride + i);
#pragma GCC unroll 4
      for (int c = 0; c < 4; ++c) sums[r][c] += factors.first * parts[c].first;
#pragma GCC unroll 4
      for (int c = 0; c < 4; ++c) sums[r][c] += factors.second * parts[c].second;
    }
  };
  // The processor's own prefetching stops at the end of a column.
  const int64_t ahead = std::min<int64_t>(4 * product.inner, kFarthest);
  int64_t i = 0;
  Pair parts[4];
  for (; i + kStep <= product.inner; i += kStep) {
#pragma GCC unroll 4
    for (int c = 0; c < 4; ++c) {
      take(&parts[c], y[c] + i);
      __builtin_prefetch(y[c] + i + ahead, 0, 2);
    }
    add(i, parts);
  }
  if (i < product.inner) {
    for (int c = 0; c < 4; ++c) take_some(&parts[c], y[c] + i, product.inner - i);
    add(i, parts);
  }
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
    Vector first, second, found;
    add_neighbours(&first, sums[r][0], sums[r][1]);
    add_neighbours(&second, sums[r][2], sums[r][3]);
    add_neighbours(&found, first, second);
    add_neighbours(&found, found, found);
    add_neighbours(&found, found, found);
    for (int64_t c = 0; c < width; ++c) finish<T>(product, row + r, column + c, found[c]);
  }
}

template <typename T, int kRows>
NEURON_INLINE void dots(const Product& product, int64_t row, int64_t begin, int64_t end) {
  for (int64_t column = begin; column < end; column += 4) {
    dot<T, kRows>(product, row, column, std::min<int64_t>(4, end - column));
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
      std::memcpy(sums[r] + j, &sum, sizeof(sum));
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

template <typename T, int kRows>
NEURON_INLINE void strips(const Product& product, int64_t row, int64_t begin, int64_t end) {
  alignas(64) float sums[kRows][kStrip];
  for (; begin < end; begin += kStrip) {
    const int64_t width = std::min(kStrip, end - begin);
    for (auto& one : sums) std::fill(one, one + kStrip, 0.0f);
    int64_t i = 0;
    for (; i + 4 <= product.inner; i += 4) add_rows<T, kRows, 4>(product, sums, row, i, begin, width);
    for (; i < product.inner; ++i) add_rows<T, kRows, 1>(product, sums, row, i, begin, width);
    for (int r = 0; r < kRows; ++r) {
      for (int64_t j = 0; j < width; ++j) finish<T>(product, row + r, begin + j, sums[r][place_of<T>(j)]);
    }
  }
}

using Loop = void (*)(const Product& product, int64_t row, int64_t begin, int64_t end);

#define NEURON_FEW_ROWS(form, rows)                                                                            \
  NEURON_VECTORIZED void form##_f32_##rows(const Product& product, int64_t row, int64_t begin, int64_t end) {  \
    form<float, rows>(product, row, begin, end);                                                               \
  }                                                                                                            \
  NEURON_VECTORIZED void form##_bf16_##rows(const Product& product, int64_t row, int64_t begin, int64_t end) { \
    form<BFloat16, rows>(product, row, begin, end);                                                            \
  }
NEURON_FEW_ROWS(dots, 1)
NEURON_FEW_ROWS(dots, 2)
NEURON_FEW_ROWS(dots, 4)
NEURON_FEW_ROWS(strips, 1)
NEURON_FEW_ROWS(strips, 2)
NEURON_FEW_ROWS(strips, 4)

struct Loops {
  int64_t rows;
  Loop dots, strips;
};
constexpr Loops kF32[] = {
    {4, &dots_f32_4, &strips_f32_4}, {2, &dots_f32_2, &strips_f32_2}, {1, &dots_f32_1, &strips_f32_1}};
constexpr Loops kBF16[] = {
    {4, &dots_bf16_4, &strips_bf16_4}, {2, &dots_bf16_2, &strips_bf16_2}, {1, &dots_bf16_1, &strips_bf16_1}};

// x (rows, inner) as `Product` wants it.
template <typename T>
std::unique_ptr<float[]> spread(const void* x, int64_t rows, int64_t inner, int64_t stride) {
  auto spread = std::make_unique<float[]>(static_cast<size_t>(rows * stride));  // zeros
  for (int64_t row = 0; row < rows; ++row) {
    const T* from = static_cast<const T*>(x) + row * inner;
    float* to = spread.get() + row * stride;
    for (int64_t i = 0; i < inner; ++i) to[place_of<T>(i)] = load(from[i]);
  }
  return spread;
}

int64_t count_of(const neuroncore_buffer_t& buffer) {
  int64_t count = 1;
  for (int32_t d = 0; d < buffer.rank; ++d) count *= buffer.dims[d];
  return count;
}

}  // namespace

void matmul_few_rows(const KernelCall& call) {
  const neuroncore_buffer_t &x = call.input_buffer(0), &y = call.input_buffer(1), &out = call.output_buffer(0);
  const int64_t inner = call.integer("inner");
  const bool columns_lie_whole = call.integer("transposed") != 0;
  const bool is_f32 = x.element_type == NEURONCORE_TYPE_F32;
  TORCH_CHECK(is_f32 || x.element_type == NEURONCORE_TYPE_BF16, "expected f32 or bf16, got element type ",
              x.element_type);
  TORCH_CHECK(y.element_type == x.element_type && out.element_type == x.element_type,
              "expected operands and a result of one type");
  const int64_t rows = count_of(x) / inner, columns = count_of(y) / inner;
  const int64_t stride = (inner + kStep - 1) / kStep * kStep;
  const auto spread_x =
      is_f32 ? spread<float>(x.data, rows, inner, stride) : spread<BFloat16>(x.data, rows, inner, stride);
  const void* bias = call.num_inputs() > 2 ? call.input_buffer(2).data : nullptr;
  const Product product{spread_x.get(), y.data, bias, out.data, inner, columns, stride};
  // So much of y is in the first-level cache when further rows want it.
  const int64_t block = columns_lie_whole ? std::max<int64_t>(4, kBlock / inner / 4 * 4)
                                          : std::clamp<int64_t>(columns / 8 / 128 * 128, 128, kStrip);
  // Large pieces are read faster, small ones end together.
  const int64_t blocks = (columns + block - 1) / block;
  const int64_t piece = std::max({int64_t{1}, kPiece / (block * inner), blocks / 32});
  shared_loop(blocks, piece, [&](int64_t first, int64_t last) {
    for (int64_t begin = first * block; begin < std::min(last * block, columns); begin += block) {
      const int64_t end = std::min(begin + block, columns);
      int64_t row = 0;
      for (const Loops& loops : is_f32 ? kF32 : kBF16) {
        for (; row + loops.rows <= rows; row += loops.rows) {
          (columns_lie_whole ? loops.dots : loops.strips)(product, row, begin, end);
        }
      }
    }
  });
}

}  // namespace neuron
