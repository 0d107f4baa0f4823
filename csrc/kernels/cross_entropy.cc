// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>

#include "kernel_call.h"
#include "shared_loop.h"
#include "vectorized.h"

// The gradient of a cross entropy by its logits: see torch_neuronx/lowering/families/cross_entropy.py.
namespace neuron {
namespace {

// Elements that one thread takes at least.
constexpr int64_t kGrain = 32768;

struct Operands {
  const void* logits;
  const float *largest, *log_total, *step;  // one number a row
  const int64_t* target;
  void* out;
  int64_t count;  // of a row
};

template <typename In, typename Out>
NEURON_INLINE void rows(const Operands& operands, int64_t begin, int64_t end) {
  const int64_t count = operands.count;
  for (int64_t row = begin; row < end; ++row) {
    const In* x = static_cast<const In*>(operands.logits) + row * count;
    Out* out = static_cast<Out*>(operands.out) + row * count;
    const float largest = operands.largest[row], log_total = operands.log_total[row], step = operands.step[row];
    // First: the result may take the memory of the logits.
    const int64_t target = operands.target[row];
    const float of_target = target >= 0 && target < count ? load(x[target]) : 0;
#pragma GCC ivdep
    for (int64_t i = 0; i < count; ++i) store(&out[i], exponential((load(x[i]) - largest) - log_total) * step);
    if (target >= 0 && target < count) {
      store(&out[target], exponential((of_target - largest) - log_total) * step - step);
    }
  }
}

using Rows = void (*)(const Operands& operands, int64_t begin, int64_t end);

NEURON_VECTORIZED void rows_f32(const Operands& operands, int64_t begin, int64_t end) {
  rows<float, float>(operands, begin, end);
}
NEURON_VECTORIZED void rows_bf16(const Operands& operands, int64_t begin, int64_t end) {
  rows<BFloat16, BFloat16>(operands, begin, end);
}
NEURON_VECTORIZED void rows_bf16_to_f32(const Operands& operands, int64_t begin, int64_t end) {
  rows<BFloat16, float>(operands, begin, end);
}

Rows rows_of(int32_t in, int32_t out) {
  if (in == NEURONCORE_TYPE_F32 && out == NEURONCORE_TYPE_F32) return &rows_f32;
  if (in == NEURONCORE_TYPE_BF16 && out == NEURONCORE_TYPE_BF16) return &rows_bf16;
  TORCH_CHECK(in == NEURONCORE_TYPE_BF16 && out == NEURONCORE_TYPE_F32, "expected f32 or bf16, got element types ", in,
              " and ", out);
  return &rows_bf16_to_f32;
}

}  // namespace

// Operands: logits (n, classes), whose memory the result may take; their statistics, the gradient of each sample's loss
// and its target, all (n, 1).
void cross_entropy_gradient(const KernelCall& call) {
  const neuroncore_buffer_t &logits = call.input_buffer(0), &out = call.output_buffer(0);
  TORCH_CHECK(logits.rank == 2 && call.input_buffer(4).element_type == NEURONCORE_TYPE_S64,
              "expected logits of two dimensions and targets of s64");
  const auto numbers = [&](size_t index) { return static_cast<const float*>(call.input_buffer(index).data); };
  const Operands operands{
      logits.data, numbers(1),    numbers(2), numbers(3), static_cast<const int64_t*>(call.input_buffer(4).data),
      out.data,    logits.dims[1]};
  const Rows rows = rows_of(logits.element_type, out.element_type);
  shared_loop(logits.dims[0], rows_of_share(kGrain, operands.count),
              [&](int64_t begin, int64_t end) { rows(operands, begin, end); });
}

}  // namespace neuron
