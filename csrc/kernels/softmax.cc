// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include <ATen/ops/_log_softmax.h>

#include "kernel_call.h"
#include "shared_loop.h"
#include "vectorized.h"

namespace neuron {
namespace {

// Elements that one thread takes at least.
constexpr int64_t kGrain = 32768;

// The largest of a row and the logarithm of the sum of exponentials of the distances to it.
struct Statistics {
  float largest, log_total;
};

// Sums of so many columns run side by side, for vectors and for accuracy.
constexpr int64_t kLanes = 64;

template <typename T>
NEURON_INLINE Statistics statistics(const T* row, int64_t count) {
  float lanes[kLanes];
  std::fill(lanes, lanes + kLanes, -std::numeric_limits<float>::infinity());
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int64_t j = 0; j < kLanes; ++j) {
      const float x = load(row[i + j]);
      lanes[j] = x > lanes[j] || x != x ? x : lanes[j];  // NaN replaces a number, and only NaN replaces NaN
    }
  }
  float largest = -std::numeric_limits<float>::infinity();
  for (; i < count; ++i) {
    const float x = load(row[i]);
    largest = x > largest || x != x ? x : largest;
  }
  for (float x : lanes) largest = x > largest || x != x ? x : largest;
  std::fill(lanes, lanes + kLanes, 0.0f);
  for (i = 0; i + kLanes <= count; i += kLanes) {
    for (int64_t j = 0; j < kLanes; ++j) lanes[j] += exponential(load(row[i + j]) - largest);
  }
  double total = 0;
  for (; i < count; ++i) total += exponential(load(row[i]) - largest);
  for (float x : lanes) total += x;
  return {largest, static_cast<float>(std::log(total))};
}

using Rows = void (*)(const void* data, int64_t count, float* largest, float* log_total, int64_t begin, int64_t end);

template <typename T>
NEURON_INLINE void all_statistics(const void* data, int64_t count, float* largest, float* log_total, int64_t begin,
                                  int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    const Statistics found = statistics(static_cast<const T*>(data) + row * count, count);
    largest[row] = found.largest;
    log_total[row] = found.log_total;
  }
}

NEURON_VECTORIZED void statistics_f32(const void* data, int64_t count, float* largest, float* log_total, int64_t begin,
                                      int64_t end) {
  all_statistics<float>(data, count, largest, log_total, begin, end);
}

NEURON_VECTORIZED void statistics_bf16(const void* data, int64_t count, float* largest, float* log_total, int64_t begin,
                                       int64_t end) {
  all_statistics<BFloat16>(data, count, largest, log_total, begin, end);
}

Rows statistics_of(int32_t element_type) {
  if (element_type == NEURONCORE_TYPE_F32) return &statistics_f32;
  TORCH_CHECK(element_type == NEURONCORE_TYPE_BF16, "expected f32 or bf16, got element type ", element_type);
  return &statistics_bf16;
}

}  // namespace

// Of float32, along the last dimension.
void log_softmax(const KernelCall& call) {
  at::Tensor result = call.output(0);
  at::_log_softmax_out(result, call.input(0), -1, /*half_to_float=*/false);
}

// Of float32 or bfloat16, along the last dimension, which the two float32 results keep with size 1.
void softmax_statistics(const KernelCall& call) {
  const neuroncore_buffer_t& x = call.input_buffer(0);
  const Rows rows = statistics_of(x.element_type);
  const int64_t count = x.dims[x.rank - 1];
  auto* largest = static_cast<float*>(call.output_buffer(0).data);
  auto* log_total = static_cast<float*>(call.output_buffer(1).data);
  shared_loop(leading_extent(x, x.rank - 1), rows_of_share(kGrain, count),
              [&](int64_t begin, int64_t end) { rows(x.data, count, largest, log_total, begin, end); });
}

}  // namespace neuron
