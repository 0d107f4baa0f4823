// SPDX-License-Identifier: Apache-2.0
#include <optional>

#include <ATen/native/transformers/attention.h>

#include "kernel_call.h"

// ATen's flash attention for the CPU, called below its operators so that it writes to the core's
// buffers. Operands are (batch, length, heads, size), logsumexp is (batch, length, heads): see
// torch_neuronx/lowering/families/attention.py.
namespace neuron {
namespace {

std::optional<at::Tensor> mask(const KernelCall& call, size_t index) {
  if (index < call.num_inputs()) return call.input(index);
  return std::nullopt;
}

at::Tensor heads_first(const at::Tensor& x) { return x.transpose(1, 2); }

}  // namespace

void attention(const KernelCall& call) {
  at::native::flash_attention_kernel(at::kCPU, call.output(0), call.output(1), heads_first(call.input(0)),
                                     heads_first(call.input(1)), heads_first(call.input(2)), /*dropout_p=*/0.0,
                                     call.integer("causal") != 0, mask(call, 3), call.number("scale"));
}

void attention_backward(const KernelCall& call) {
  const at::Tensor gradients[] = {call.output(0), call.output(1), call.output(2)};
  for (const at::Tensor& gradient : gradients) gradient.zero_();  // the kernel adds to them
  at::native::flash_attention_backward_kernel(at::kCPU, gradients[0], gradients[1], gradients[2], call.input(0),
                                              call.input(1), call.input(2), call.input(3), call.input(4), call.input(5),
                                              /*dropout_p=*/0.0, call.integer("causal") != 0, mask(call, 6),
                                              call.number("scale"));
}

}  // namespace neuron
