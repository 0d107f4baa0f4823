// SPDX-License-Identifier: Apache-2.0
#include <optional>

#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>

#include "kernel_call.h"

// ATen's flash attention for the CPU. Operands and results are (batch, length, heads, size),
// logsumexp is (batch, length, heads): see torch_neuronx/lowering/families/attention.py. That is how
// ATen lays its results out, too, so that taking them over is a plain copy.
namespace neuron {
namespace {

at::Tensor swapped(const at::Tensor& x) { return x.transpose(1, 2); }

std::optional<at::Tensor> mask(const KernelCall& call, size_t index) {
  if (index < call.num_inputs()) return call.input(index);
  return std::nullopt;
}

}  // namespace

void attention(const KernelCall& call) {
  const auto [output, logsumexp] = at::_scaled_dot_product_flash_attention_for_cpu(
      swapped(call.input(0)), swapped(call.input(1)), swapped(call.input(2)), /*dropout_p=*/0.0,
      call.integer("causal") != 0, mask(call, 3), call.number("scale"));
  call.output(0).copy_(swapped(output));
  call.output(1).copy_(swapped(logsumexp));
}

void attention_backward(const KernelCall& call) {
  const auto [query, key, value] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
      swapped(call.input(0)), swapped(call.input(1)), swapped(call.input(2)), swapped(call.input(3)),
      swapped(call.input(4)), swapped(call.input(5)), /*dropout_p=*/0.0, call.integer("causal") != 0, mask(call, 6),
      call.number("scale"));
  call.output(0).copy_(swapped(query));
  call.output(1).copy_(swapped(key));
  call.output(2).copy_(swapped(value));
}

}  // namespace neuron
