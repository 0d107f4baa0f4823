// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>
#include <memory>

#include "few_rows.h"
#include "kernel_call.h"
#include "shared_loop.h"
#include "vectorized.h"

// The product of a few rows by a matrix, which is read once, at the speed of memory: see
// torch_neuronx/lowering/families/contractions.py. ATen reads bfloat16 at a third to two thirds of it.
namespace neuron {
namespace {

// Elements of y that several rows take in turns.
constexpr int64_t kBlock = 8192;
// Elements of y that are worth a second thread's while.
constexpr int64_t kPiece = 16384;

using Loop = void (*)(const Product& product, int64_t row, int64_t begin, int64_t end);

#define NEURON_FEW_ROWS(form, rows)                                                                            \
  NEURON_VECTORIZED void form##_f32_##rows(const Product& product, int64_t row, int64_t begin, int64_t end) {  \
    form<float, float, rows>(product, row, begin, end);                                                        \
  }                                                                                                            \
  NEURON_VECTORIZED void form##_bf16_##rows(const Product& product, int64_t row, int64_t begin, int64_t end) { \
    form<BFloat16, BFloat16, rows>(product, row, begin, end);                                                  \
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
  const int64_t rows = leading_extent(x, x.rank) / inner, columns = leading_extent(y, y.rank) / inner;
  const int64_t stride = round_up(inner, kStep);
  const auto spread_x =
      is_f32 ? spread<float>(x.data, rows, inner, stride) : spread<BFloat16>(x.data, rows, inner, stride);
  const void* bias = call.num_inputs() > 2 ? call.input_buffer(2).data : nullptr;
  const Product product{spread_x.get(), y.data, bias, out.data, inner, columns, stride};
  // So much of y is in the first-level cache when further rows want it.
  const int64_t block = columns_lie_whole ? std::max<int64_t>(4, kBlock / inner / 4 * 4)
                                          : std::clamp<int64_t>(columns / 8 / 128 * 128, 128, kStrip);
  const int64_t blocks = divide_up(columns, block);
  const int64_t piece = std::max<int64_t>(1, kPiece / (block * inner));
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
