// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <optional>

#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>

#include "kernel_call.h"

namespace neuron {

void convolution(const KernelCall& call) {
  std::optional<at::Tensor> bias;
  if (call.num_inputs() > 2) bias = call.input(2);
  const at::Tensor result = at::convolution(
      call.input(0), call.input(1), bias, call.integers("stride"), call.integers("padding"), call.integers("dilation"),
      call.integer("transposed") != 0, call.integers("output_padding"), call.integer("groups"));
  call.output(0).copy_(result);
}

// Operands: gradient, input, weight. Results: the gradients that `mask` asks for, of input and weight.
void convolution_backward(const KernelCall& call) {
  const std::vector<int64_t> mask = call.integers("mask");
  const auto [input, weight, bias] = at::convolution_backward(
      call.input(0), call.input(1), call.input(2), std::nullopt, call.integers("stride"), call.integers("padding"),
      call.integers("dilation"), call.integer("transposed") != 0, call.integers("output_padding"),
      call.integer("groups"), std::array<bool, 3>{mask.at(0) != 0, mask.at(1) != 0, false});
  size_t index = 0;
  if (mask[0] != 0) call.output(index++).copy_(input);
  if (mask[1] != 0) call.output(index++).copy_(weight);
}

}  // namespace neuron
