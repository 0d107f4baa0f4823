// SPDX-License-Identifier: Apache-2.0
#include <cstdint>

#include "kernel_call.h"
#include "shared_loop.h"
#include "silu.h"
#include "vectorized.h"

// silu(gate) * x: see torch_neuronx/lowering/patterns.py.
namespace neuron {
namespace {

// Elements that one thread takes at least.
constexpr int64_t kGrain = 16384;

template <typename T>
NEURON_INLINE void row(const void* gate, const void* x, void* out, int64_t begin, int64_t end) {
  const T* g = static_cast<const T*>(gate);
  const T* y = static_cast<const T*>(x);
  T* z = static_cast<T*>(out);
#pragma GCC ivdep
  for (int64_t i = begin; i < end; ++i) store(&z[i], silu(load(g[i])) * load(y[i]));
}

NEURON_VECTORIZED void row_f32(const void* gate, const void* x, void* out, int64_t begin, int64_t end) {
  row<float>(gate, x, out, begin, end);
}
NEURON_VECTORIZED void row_bf16(const void* gate, const void* x, void* out, int64_t begin, int64_t end) {
  row<BFloat16>(gate, x, out, begin, end);
}

// Consecutive columns of a matrix.
struct Columns {
  Columns(const neuroncore_buffer_t& buffer, int64_t first, int64_t size)
      : data(static_cast<const char*>(buffer.data) + first * size), stride(buffer.dims[buffer.rank - 1] * size) {}

  const char* data;
  int64_t stride;  // bytes from row to row
};

}  // namespace

// Operands: what holds the gate and what holds x, each from a column of its last dimension on.
void gated_silu(const KernelCall& call) {
  const neuroncore_buffer_t& out = call.output_buffer(0);
  const bool wide = out.element_type == NEURONCORE_TYPE_F32;
  TORCH_CHECK(wide || out.element_type == NEURONCORE_TYPE_BF16, "expected f32 or bf16, got element type ",
              out.element_type);
  const int64_t size = wide ? sizeof(float) : sizeof(BFloat16), count = out.dims[out.rank - 1];
  const Columns gate(call.input_buffer(0), call.integer("gate"), size);
  const Columns x(call.input_buffer(1), call.integer("x"), size);
  shared_loop(leading_extent(out, out.rank - 1), rows_of_share(kGrain, count), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      (wide ? row_f32 : row_bf16)(gate.data + i * gate.stride, x.data + i * x.stride,
                                  static_cast<char*>(out.data) + i * count * size, 0, count);
    }
  });
}

}  // namespace neuron
