// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstdint>

#include "kernel_call.h"
#include "shared_loop.h"
#include "vectorized.h"

// Root-mean-square normalization: see torch_neuronx/lowering/families/normalization.py.
namespace neuron {
namespace {

// Elements that one thread takes at least.
constexpr int64_t kGrain = 16384;
constexpr int64_t kLanes = 16;

struct Operands {
  const void *x, *weight;
  void* out;
  float* rstd;  // one a row; may be null
  int64_t count;
  float eps;
  bool rounds_first;  // before the product with the weight
};

using Rows = void (*)(const Operands& operands, int64_t begin, int64_t end);

template <typename T>
NEURON_INLINE void rows(const Operands& operands, int64_t begin, int64_t end) {
  const int64_t count = operands.count, whole = count / kLanes * kLanes;
  const T* weight = static_cast<const T*>(operands.weight);
  for (int64_t row = begin; row < end; ++row) {
    const T* x = static_cast<const T*>(operands.x) + row * count;
    T* out = static_cast<T*>(operands.out) + row * count;
    float lanes[kLanes] = {};
    for (int64_t i = 0; i < whole; i += kLanes) {
      for (int64_t lane = 0; lane < kLanes; ++lane) lanes[lane] += load(x[i + lane]) * load(x[i + lane]);
    }
    float sum = 0;
    for (float value : lanes) sum += value;
    for (int64_t i = whole; i < count; ++i) sum += load(x[i]) * load(x[i]);
    const float rstd = 1.0f / std::sqrt(sum / static_cast<float>(count) + operands.eps);
    if (operands.rstd != nullptr) operands.rstd[row] = rstd;
    if (operands.rounds_first) {
#pragma GCC ivdep
      for (int64_t i = 0; i < count; ++i) {
        T rounded;
        store(&rounded, load(x[i]) * rstd);
        store(&out[i], load(rounded) * load(weight[i]));
      }
    } else {
#pragma GCC ivdep
      for (int64_t i = 0; i < count; ++i) store(&out[i], load(x[i]) * rstd * load(weight[i]));
    }
  }
}

NEURON_VECTORIZED void rows_f32(const Operands& operands, int64_t begin, int64_t end) {
  rows<float>(operands, begin, end);
}
NEURON_VECTORIZED void rows_bf16(const Operands& operands, int64_t begin, int64_t end) {
  rows<BFloat16>(operands, begin, end);
}

}  // namespace

// Operands: x and a weight as long as its last dimension, of one type; results: the same of x, and the reciprocal of
// each row's root mean square.
void rms_norm(const KernelCall& call) {
  const neuroncore_buffer_t &x = call.input_buffer(0), &weight = call.input_buffer(1);
  TORCH_CHECK(x.rank > 0 && x.element_type == weight.element_type && weight.dims[0] == x.dims[x.rank - 1],
              "expected a weight as long as the last dimension, of the operand's type");
  const bool wide = x.element_type == NEURONCORE_TYPE_F32;
  TORCH_CHECK(wide || x.element_type == NEURONCORE_TYPE_BF16, "expected f32 or bf16, got element type ",
              x.element_type);
  const Operands operands{x.data,
                          weight.data,
                          call.output_buffer(0).data,
                          call.num_outputs() > 1 ? static_cast<float*>(call.output_buffer(1).data) : nullptr,
                          x.dims[x.rank - 1],
                          static_cast<float>(call.number("eps")),
                          call.integer("rounds_first") != 0};
  shared_loop(leading_extent(x, x.rank - 1), rows_of_share(kGrain, operands.count),
              [&](int64_t begin, int64_t end) { (wide ? rows_f32 : rows_bf16)(operands, begin, end); });
}

}  // namespace neuron
