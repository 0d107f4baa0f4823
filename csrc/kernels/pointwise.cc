// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>

#include "kernel_call.h"
#include "shared_loop.h"
#include "vectorized.h"

// One function of large dense operands: see torch_neuronx/lowering/single_pointwise.py.
namespace neuron {
namespace {

// An ATen CPU kernel gives a second thread no less than this.
constexpr int64_t kGrain = 32768;

// Operands of one call. Of a scalar, the pointer is null and the value stands beside it.
struct Operands {
  const void* data[3] = {};
  float value[3] = {};
  float alpha = 0;
  void* out = nullptr;  // may be one of `data`
};

using Loop = void (*)(const Operands& operands, int64_t begin, int64_t end);

template <typename T, typename Function>
NEURON_INLINE void loop(const Operands& operands, int64_t begin, int64_t end, Function function) {
  const T* x = static_cast<const T*>(operands.data[0]);
  const T* y = static_cast<const T*>(operands.data[1]);
  const T* z = static_cast<const T*>(operands.data[2]);
  const float x_value = operands.value[0], y_value = operands.value[1], alpha = operands.alpha;
  T* out = static_cast<T*>(operands.out);
  if (z != nullptr) {
#pragma GCC ivdep
    for (int64_t i = begin; i < end; ++i) store(&out[i], function(load(x[i]), load(y[i]), load(z[i]), alpha));
  } else if (y == nullptr) {
#pragma GCC ivdep
    for (int64_t i = begin; i < end; ++i) store(&out[i], function(load(x[i]), y_value, 0.0f, alpha));
  } else if (x == nullptr) {
#pragma GCC ivdep
    for (int64_t i = begin; i < end; ++i) store(&out[i], function(x_value, load(y[i]), 0.0f, alpha));
  } else {
#pragma GCC ivdep
    for (int64_t i = begin; i < end; ++i) store(&out[i], function(load(x[i]), load(y[i]), 0.0f, alpha));
  }
}

// A function of so many tensors and, if it is scaled, of a factor `alpha`, all float32.
#define NEURON_POINTWISE(name, expression)                                                                            \
  NEURON_VECTORIZED void name##_f32(const Operands& operands, int64_t begin, int64_t end) {                           \
    loop<float>(operands, begin, end,                                                                                 \
                [](float x, float y, float z, float alpha) __attribute__((always_inline)) { return expression; });    \
  }                                                                                                                   \
  NEURON_VECTORIZED void name##_bf16(const Operands& operands, int64_t begin, int64_t end) {                          \
    loop<BFloat16>(operands, begin, end,                                                                              \
                   [](float x, float y, float z, float alpha) __attribute__((always_inline)) { return expression; }); \
  }

NEURON_POINTWISE(add, x + alpha * y)
NEURON_POINTWISE(sub, x - alpha * y)
NEURON_POINTWISE(mul, x* y)
NEURON_POINTWISE(div, x / y)
NEURON_POINTWISE(maximum, x > y || x != x ? x : y)  // a NaN of either wins
NEURON_POINTWISE(minimum, x < y || x != x ? x : y)
NEURON_POINTWISE(addcmul, x + alpha * y * z)
NEURON_POINTWISE(addcdiv, x + alpha * y / z)
NEURON_POINTWISE(relu, x < 0 ? 0 : x)  // keeps NaN and -0.0
NEURON_POINTWISE(neg, -x)
NEURON_POINTWISE(abs, std::fabs(x))
NEURON_POINTWISE(sqrt, __builtin_sqrtf(x))
NEURON_POINTWISE(reciprocal, 1 / x)

struct Operator {
  const char* name;
  size_t tensors;
  bool scaled;
  Loop f32, bf16;
};

#define NEURON_ROW(name, tensors, scaled) {#name, tensors, scaled, &name##_f32, &name##_bf16}
const Operator kOperators[] = {
    NEURON_ROW(add, 2, true),        NEURON_ROW(sub, 2, true),      NEURON_ROW(mul, 2, false),
    NEURON_ROW(div, 2, false),       NEURON_ROW(maximum, 2, false), NEURON_ROW(minimum, 2, false),
    NEURON_ROW(addcmul, 3, true),    NEURON_ROW(addcdiv, 3, true),  NEURON_ROW(relu, 1, false),
    NEURON_ROW(neg, 1, false),       NEURON_ROW(abs, 1, false),     NEURON_ROW(sqrt, 1, false),
    NEURON_ROW(reciprocal, 1, false)};

const Operator& find_operator(const std::string& name) {
  for (const Operator& op : kOperators) {
    if (name == op.name) return op;
  }
  TORCH_CHECK(false, "there is no pointwise kernel named ", name);
}

Loop loop_of(const Operator& op, int32_t element_type) {
  if (element_type == NEURONCORE_TYPE_F32) return op.f32;
  TORCH_CHECK(element_type == NEURONCORE_TYPE_BF16, op.name, ": expected f32 or bf16, got element type ", element_type);
  return op.bf16;
}

float scalar(const neuroncore_buffer_t& buffer) {
  switch (buffer.element_type) {
    case NEURONCORE_TYPE_F32:
      return *static_cast<const float*>(buffer.data);
    case NEURONCORE_TYPE_BF16:
      return load(*static_cast<const BFloat16*>(buffer.data));
    case NEURONCORE_TYPE_S64:
      return static_cast<float>(*static_cast<const int64_t*>(buffer.data));
    default:
      TORCH_CHECK(false, "expected a scalar of f32, bf16 or s64, got element type ", buffer.element_type);
  }
}

}  // namespace

void pointwise(const KernelCall& call) {
  const neuroncore_buffer_t& out = call.output_buffer(0);
  const Operator& op = find_operator(call.text("operator"));
  const Loop loop = loop_of(op, out.element_type);
  TORCH_CHECK(call.num_inputs() == op.tensors + op.scaled, op.name, ": expected ", op.tensors + op.scaled,
              " operands, got ", call.num_inputs());
  Operands operands;
  operands.out = out.data;
  for (size_t i = 0; i < op.tensors; ++i) {
    const neuroncore_buffer_t& buffer = call.input_buffer(i);
    if (buffer.rank > 0) {
      operands.data[i] = buffer.data;
    } else {
      operands.value[i] = scalar(buffer);
    }
  }
  if (op.scaled) operands.alpha = scalar(call.input_buffer(op.tensors));
  shared_loop(leading_extent(out, out.rank), kGrain, [&](int64_t begin, int64_t end) { loop(operands, begin, end); });
}

}  // namespace neuron
