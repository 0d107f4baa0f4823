// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>

#include "kernel_call.h"
#include "shared_loop.h"
#include "vectorized.h"

// Rotary position embedding: see torch_neuronx/lowering/patterns.py.
namespace neuron {
namespace {

// Elements that one thread takes at least.
constexpr int64_t kGrain = 16384;

// One row: x * cosine + turned(x) * sine, where (x0, x1) turns into (-x1, x0). The pairs are the halves of the row.
template <typename T, typename Angle>
NEURON_INLINE void turn_halves(const T* x, const Angle* cosine, const Angle* sine, T* out, int64_t size) {
  const int64_t half = size / 2;
#pragma GCC ivdep
  for (int64_t i = 0; i < half; ++i) {
    const float first = load(x[i]), second = load(x[half + i]);
    store(&out[i], first * load(cosine[i]) - second * load(sine[i]));
    store(&out[half + i], second * load(cosine[half + i]) + first * load(sine[half + i]));
  }
}

// The same; the pairs are neighbours.
template <typename T, typename Angle>
NEURON_INLINE void turn_neighbours(const T* x, const Angle* cosine, const Angle* sine, T* out, int64_t size) {
#pragma GCC ivdep
  for (int64_t i = 0; i < size; i += 2) {
    const float first = load(x[i]), second = load(x[i + 1]);
    store(&out[i], first * load(cosine[i]) - second * load(sine[i]));
    store(&out[i + 1], second * load(cosine[i + 1]) + first * load(sine[i + 1]));
  }
}

struct Operands {
  const void *x, *cosine, *sine;
  void* out;
  int64_t size;  // of a row
  bool neighbours;
};

// `count` rows, all with the row of angles at `cosine` and `sine` (in elements).
using Rows = void (*)(const Operands& operands, int64_t row, int64_t count, int64_t cosine, int64_t sine);

template <typename T, typename Angle>
NEURON_INLINE void rows(const Operands& operands, int64_t row, int64_t count, int64_t cosine, int64_t sine) {
  const Angle* cosines = static_cast<const Angle*>(operands.cosine) + cosine;
  const Angle* sines = static_cast<const Angle*>(operands.sine) + sine;
  for (int64_t i = row; i < row + count; ++i) {
    const T* x = static_cast<const T*>(operands.x) + i * operands.size;
    T* out = static_cast<T*>(operands.out) + i * operands.size;
    if (operands.neighbours) {
      turn_neighbours(x, cosines, sines, out, operands.size);
    } else {
      turn_halves(x, cosines, sines, out, operands.size);
    }
  }
}

NEURON_VECTORIZED void rows_f32(const Operands& operands, int64_t row, int64_t count, int64_t cosine, int64_t sine) {
  rows<float, float>(operands, row, count, cosine, sine);
}
NEURON_VECTORIZED void rows_bf16(const Operands& operands, int64_t row, int64_t count, int64_t cosine, int64_t sine) {
  rows<BFloat16, BFloat16>(operands, row, count, cosine, sine);
}
NEURON_VECTORIZED void rows_bf16_by_f32(const Operands& operands, int64_t row, int64_t count, int64_t cosine,
                                        int64_t sine) {
  rows<BFloat16, float>(operands, row, count, cosine, sine);
}

Rows rows_of(int32_t type, int32_t angle) {
  if (type == NEURONCORE_TYPE_F32 && angle == NEURONCORE_TYPE_F32) return &rows_f32;
  if (type == NEURONCORE_TYPE_BF16 && angle == NEURONCORE_TYPE_BF16) return &rows_bf16;
  TORCH_CHECK(type == NEURONCORE_TYPE_BF16 && angle == NEURONCORE_TYPE_F32, "expected f32 or bf16, got element types ",
              type, " and ", angle);
  return &rows_bf16_by_f32;
}

int64_t dot(const std::vector<int64_t>& x, const std::vector<int64_t>& y) {
  int64_t sum = 0;
  for (size_t i = 0; i < x.size(); ++i) sum += x[i] * y[i];
  return sum;
}

}  // namespace

// Operands: x, dense, and the cosines and sines of its angles, which `cosine` and `sine` lay over the leading
// dimensions of x by a stride for each. The pairs lie in the last dimension.
void rotary(const KernelCall& call) {
  const neuroncore_buffer_t &x = call.input_buffer(0), &cosine = call.input_buffer(1), &sine = call.input_buffer(2);
  const std::vector<int64_t> cosine_strides = call.integers("cosine"), sine_strides = call.integers("sine");
  const std::vector<int64_t> dims(x.dims, x.dims + x.rank - 1);
  TORCH_CHECK(cosine.element_type == sine.element_type && cosine_strides.size() == dims.size() &&
                  sine_strides.size() == dims.size() && x.dims[x.rank - 1] % 2 == 0,
              "expected angles of one type, a stride for each leading dimension and an even last dimension");
  const Rows rows = rows_of(x.element_type, cosine.element_type);
  const Operands operands{
      x.data, cosine.data, sine.data, call.output_buffer(0).data, x.dims[x.rank - 1], call.integer("neighbours") != 0};
  // Rows that follow one another and share their angles: the heads of a position, as a rule.
  size_t outer = dims.size();
  int64_t run = 1, runs = 1;
  while (outer > 0 && cosine_strides[outer - 1] == 0 && sine_strides[outer - 1] == 0) run *= dims[--outer];
  for (size_t d = 0; d < outer; ++d) runs *= dims[d];
  shared_loop(runs, rows_of_share(kGrain, run * operands.size), [&](int64_t begin, int64_t end) {
    std::vector<int64_t> index(dims.size(), 0);
    for (int64_t i = begin, rest = begin; i < end; rest = ++i) {
      for (size_t d = outer; d-- > 0; rest /= dims[d]) index[d] = rest % dims[d];
      rows(operands, i * run, run, dot(index, cosine_strides), dot(index, sine_strides));
    }
  });
}

}  // namespace neuron
