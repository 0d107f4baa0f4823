// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <optional>

#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>

#include "attention_backward.h"
#include "attention_forward.h"
#include "attention_softmax.h"
#include "kernel_call.h"
#include "processor.h"
#include "vectorized.h"

// Operands and results are (batch, length, heads, size), logsumexp is (batch, length, heads): see
// torch_neuronx/lowering/families/attention.py. What our kernel is not made for goes to ATen's flash attention for the
// CPU, which lays its results out in the same way, so that taking them over is a plain copy.
namespace neuron {
namespace {

at::Tensor swapped(const at::Tensor& x) { return x.transpose(1, 2); }

std::optional<at::Tensor> mask(const KernelCall& call, size_t index) {
  if (index < call.num_inputs()) return call.input(index);
  return std::nullopt;
}

using Forward = void (*)(const AttentionOperands& operands);

// Our kernel, where it is faster than ATen's: with AVX2 at least, and enough rows for packing keys and values to pay.
Forward own_kernel(const AttentionOperands& x, int32_t element_type) {
#if defined(__x86_64__)
  if (!has_avx2() || !std::isnormal(x.scale) || x.batch * x.heads * x.keys * x.size == 0) return nullptr;
  if (element_type == NEURONCORE_TYPE_BF16 && has_fast_bfloat16()) {
    return x.length >= 8 ? &attention_forward<BFloat16, BFloat16> : nullptr;
  }
  if (x.length < 32) return nullptr;
  if (element_type == NEURONCORE_TYPE_F32) return &attention_forward<float, float>;
  if (element_type == NEURONCORE_TYPE_BF16) return &attention_forward<BFloat16, float>;
#endif
  return nullptr;
}

AttentionOperands forward_operands(const KernelCall& call) {
  AttentionOperands x{attention_inputs(call, kLengthThenHeads, 0, 3)};
  x.output = call.output_buffer(0).data;
  x.logsumexp = static_cast<float*>(call.output_buffer(1).data);
  x.causal = call.integer("causal") != 0;
  return x;
}

using BackwardKernel = void (*)(const AttentionGradientOperands& operands);

// The same; a mask that is broadcast over keys is left to ATen. The gradients of a head take one thread, as in ATen.
BackwardKernel own_backward(const AttentionGradientOperands& x, int32_t element_type) {
#if defined(__x86_64__)
  const bool broadcast = x.mask != nullptr && x.mask_strides[3] == 0 && x.keys > 1;
  if (!has_avx2() || broadcast || x.batch * x.heads * x.length * x.keys * x.size == 0) return nullptr;
  if (element_type == NEURONCORE_TYPE_F32) return &attention_backward<float, float>;
  if (element_type != NEURONCORE_TYPE_BF16) return nullptr;
  return has_fast_bfloat16() ? &attention_backward<BFloat16, BFloat16> : &attention_backward<BFloat16, float>;
#else
  return nullptr;
#endif
}

AttentionGradientOperands backward_operands(const KernelCall& call) {
  AttentionGradientOperands x{attention_inputs(call, kLengthThenHeads, 1, 6)};
  x.grad = call.input_buffer(0).data;
  x.output = call.input_buffer(4).data;
  x.logsumexp = static_cast<const float*>(call.input_buffer(5).data);
  x.grad_query = call.output_buffer(0).data;
  x.grad_key = call.output_buffer(1).data;
  x.grad_value = call.output_buffer(2).data;
  x.causal = call.integer("causal") != 0;
  return x;
}

}  // namespace

void attention(const KernelCall& call) {
  const AttentionOperands operands = forward_operands(call);
  if (const Forward forward = own_kernel(operands, call.input_buffer(0).element_type)) {
    forward(operands);
    return;
  }
  const auto [output, logsumexp] = at::_scaled_dot_product_flash_attention_for_cpu(
      swapped(call.input(0)), swapped(call.input(1)), swapped(call.input(2)), /*dropout_p=*/0.0,
      call.integer("causal") != 0, mask(call, 3), call.number("scale"));
  call.output(0).copy_(swapped(output));
  call.output(1).copy_(swapped(logsumexp));
}

void attention_backward(const KernelCall& call) {
  const AttentionGradientOperands operands = backward_operands(call);
  if (const BackwardKernel backward = own_backward(operands, call.input_buffer(1).element_type)) {
    backward(operands);
    return;
  }
  const auto [query, key, value] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
      swapped(call.input(0)), swapped(call.input(1)), swapped(call.input(2)), swapped(call.input(3)),
      swapped(call.input(4)), swapped(call.input(5)), /*dropout_p=*/0.0, call.integer("causal") != 0, mask(call, 6),
      call.number("scale"));
  call.output(0).copy_(swapped(query));
  call.output(1).copy_(swapped(key));
  call.output(2).copy_(swapped(value));
}

}  // namespace neuron
