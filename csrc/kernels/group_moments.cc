// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>
#include <vector>

#include "kernel_call.h"
#include "shared_loop.h"
#include "vectorized.h"

// Mean and variance over groups of channels: see torch_neuronx/lowering/families/normalization.py. One pass through
// memory: of every piece that fits the first cache the mean and then the squared distances from it, and of the pieces
// together the same (Chan, Golub, LeVeque 1979), which does not cancel. Pieces do not depend on the number of threads.
namespace neuron {
namespace {

constexpr int64_t kPiece = 4096;  // elements
constexpr int64_t kLanes = 16;

struct Moments {
  double count = 0, mean = 0, squares = 0;  // sum of squared distances from the mean

  void Add(double other_count, double other_mean, double other_squares) {
    const double total = count + other_count, distance = other_mean - mean;
    if (total == 0) return;
    squares += other_squares + distance * distance * (count * other_count / total);
    mean += distance * (other_count / total);
    count = total;
  }
};

// The mean of `count` consecutive elements, and the sum of squared distances from it.
template <typename T>
NEURON_INLINE void row_moments(const T* x, int64_t count, float* mean, float* squares) {
  float lanes[kLanes] = {};
  const int64_t whole = count / kLanes * kLanes;
  for (int64_t i = 0; i < whole; i += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) lanes[lane] += load(x[i + lane]);
  }
  float sum = 0;
  for (float value : lanes) sum += value;
  for (int64_t i = whole; i < count; ++i) sum += load(x[i]);
  const float centre = sum / static_cast<float>(count);
  std::fill_n(lanes, kLanes, 0.0f);
  for (int64_t i = 0; i < whole; i += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      const float distance = load(x[i + lane]) - centre;
      lanes[lane] += distance * distance;
    }
  }
  sum = 0;
  for (float value : lanes) sum += value;
  for (int64_t i = whole; i < count; ++i) {
    const float distance = load(x[i]) - centre;
    sum += distance * distance;
  }
  *mean = centre;
  *squares = sum;
}

// The same of each of `groups` runs of `inner` columns of a (rows, groups * inner) matrix. scratch: two numbers a
// column.
template <typename T>
NEURON_INLINE void column_moments(const T* x, int64_t rows, int64_t groups, int64_t inner, float* scratch, float* means,
                                  float* squares) {
  const int64_t columns = groups * inner;
  float* sums = scratch;
  float* centres = scratch + columns;
  std::fill_n(sums, columns, 0.0f);
  for (int64_t row = 0; row < rows; ++row) {
    const T* line = x + row * columns;
#pragma GCC ivdep
    for (int64_t c = 0; c < columns; ++c) sums[c] += load(line[c]);
  }
  for (int64_t g = 0; g < groups; ++g) {
    float sum = 0;
    for (int64_t i = 0; i < inner; ++i) sum += sums[g * inner + i];
    means[g] = sum / static_cast<float>(rows * inner);
    std::fill_n(centres + g * inner, inner, means[g]);
  }
  std::fill_n(sums, columns, 0.0f);
  for (int64_t row = 0; row < rows; ++row) {
    const T* line = x + row * columns;
#pragma GCC ivdep
    for (int64_t c = 0; c < columns; ++c) {
      const float distance = load(line[c]) - centres[c];
      sums[c] += distance * distance;
    }
  }
  for (int64_t g = 0; g < groups; ++g) {
    squares[g] = 0;
    for (int64_t i = 0; i < inner; ++i) squares[g] += sums[g * inner + i];
  }
}

NEURON_VECTORIZED void row_moments_f32(const void* x, int64_t count, float* mean, float* squares) {
  row_moments(static_cast<const float*>(x), count, mean, squares);
}
NEURON_VECTORIZED void row_moments_bf16(const void* x, int64_t count, float* mean, float* squares) {
  row_moments(static_cast<const BFloat16*>(x), count, mean, squares);
}
NEURON_VECTORIZED void column_moments_f32(const void* x, int64_t rows, int64_t groups, int64_t inner, float* scratch,
                                          float* means, float* squares) {
  column_moments(static_cast<const float*>(x), rows, groups, inner, scratch, means, squares);
}
NEURON_VECTORIZED void column_moments_bf16(const void* x, int64_t rows, int64_t groups, int64_t inner, float* scratch,
                                           float* means, float* squares) {
  column_moments(static_cast<const BFloat16*>(x), rows, groups, inner, scratch, means, squares);
}

}  // namespace

// Operand (n, outer, groups, inner); results (n, groups), over the second and the last dimension.
void group_moments(const KernelCall& call) {
  const neuroncore_buffer_t& x = call.input_buffer(0);
  const bool wide = x.element_type == NEURONCORE_TYPE_F32;
  TORCH_CHECK(x.rank == 4, "expected four dimensions, got ", x.rank);
  TORCH_CHECK(wide || x.element_type == NEURONCORE_TYPE_BF16, "expected f32 or bf16, got element type ",
              x.element_type);
  const int64_t outer = x.dims[1], groups = x.dims[2], inner = x.dims[3];
  // One run of elements, or several side by side, of which a piece holds `step` elements or rows.
  const bool is_row = outer == 1;
  const int64_t runs = is_row ? x.dims[0] * groups : x.dims[0];
  const int64_t length = is_row ? inner : outer, width = is_row ? 1 : groups * inner;
  const int64_t per_run = is_row ? 1 : groups;
  const int64_t step = std::clamp<int64_t>(kPiece / width, 1, std::max<int64_t>(length, 1));
  const int64_t pieces = (length + step - 1) / step;
  const auto* data = static_cast<const char*>(x.data);
  const int64_t size = wide ? sizeof(float) : sizeof(BFloat16);
  std::vector<float> means(static_cast<size_t>(runs * pieces * per_run)), squares(means.size());
  shared_loop(runs * pieces, 1, [&](int64_t begin, int64_t end) {
    std::vector<float> scratch(static_cast<size_t>(2 * width));
    for (int64_t i = begin; i < end; ++i) {
      const int64_t start = i % pieces * step, count = std::min(step, length - start);
      const void* piece = data + (i / pieces * length + start) * width * size;
      float *mean = &means[static_cast<size_t>(i * per_run)], *square = &squares[static_cast<size_t>(i * per_run)];
      if (is_row) {
        (wide ? row_moments_f32 : row_moments_bf16)(piece, count, mean, square);
      } else {
        (wide ? column_moments_f32 : column_moments_bf16)(piece, count, groups, inner, scratch.data(), mean, square);
      }
    }
  });
  auto* mean_out = static_cast<float*>(call.output_buffer(0).data);
  auto* variance_out = static_cast<float*>(call.output_buffer(1).data);
  for (int64_t run = 0; run < runs; ++run) {
    for (int64_t g = 0; g < per_run; ++g) {
      Moments total;
      for (int64_t piece = 0; piece < pieces; ++piece) {
        const auto index = static_cast<size_t>((run * pieces + piece) * per_run + g);
        const int64_t count = std::min(step, length - piece * step) * (is_row ? 1 : inner);
        total.Add(static_cast<double>(count), means[index], squares[index]);
      }
      mean_out[run * per_run + g] = static_cast<float>(total.mean);
      variance_out[run * per_run + g] = static_cast<float>(total.squares / total.count);
    }
  }
}

}  // namespace neuron
