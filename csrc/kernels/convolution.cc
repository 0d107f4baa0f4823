// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <optional>
#include <string_view>
#include <vector>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>

#include "kernel_call.h"

namespace neuron {

namespace {

// (n, spatial ..., channels) as PyTorch has it, (n, channels, spatial ...).
at::Tensor channels_first(const at::Tensor& x) {
  std::vector<int64_t> order = {0, x.dim() - 1};
  for (int64_t d = 1; d < x.dim() - 1; ++d) order.push_back(d);
  return x.permute(order);
}

// Adds a convolution, channels last, to `out`: of ATen's convolutions the only one that takes memory for its result.
// The others would allocate it anew in every call, at the cost of a page fault for every 4 KiB of a large one.
using AddConvolution = at::Tensor&(at::Tensor& out, const at::Tensor& input, const at::Tensor& weight,
                                   const std::optional<at::Tensor>& bias, at::IntArrayRef padding,
                                   at::IntArrayRef stride, at::IntArrayRef dilation, int64_t groups,
                                   std::string_view operation, std::optional<at::Scalar> alpha,
                                   std::optional<std::string_view> activation,
                                   c10::List<std::optional<at::Scalar>> activation_arguments,
                                   std::optional<std::string_view> activation_algorithm);

const c10::TypedOperatorHandle<AddConvolution>* add_convolution() {
#if defined(__x86_64__)
  using Handle = c10::TypedOperatorHandle<AddConvolution>;
  static const std::optional<Handle> found = []() -> std::optional<Handle> {
    const auto schema = c10::Dispatcher::singleton().findSchema({"mkldnn::_convolution_pointwise_", "binary"});
    if (!schema || !schema->hasKernelForDispatchKey(c10::DispatchKey::CPU)) return std::nullopt;
    return schema->typed<AddConvolution>();
  }();
  if (found) return &*found;
#endif
  return nullptr;
}

}  // namespace

void convolution(const KernelCall& call) {
  std::optional<at::Tensor> bias;
  if (call.num_inputs() > 2) bias = call.input(2);
  const std::vector<int64_t> channels_last = call.integers("channels_last");
  const bool transposed = call.integer("transposed") != 0;
  at::Tensor input = call.input(0), weight = call.input(1), out = call.output(0);
  if (channels_last.at(0) != 0) {
    input = channels_first(input);
    out = channels_first(out);
    if (channels_last.at(1) != 0) weight = channels_first(weight);
    if (const auto* add = transposed ? nullptr : add_convolution()) {
      out.zero_();
      add->call(out, input, weight, bias, call.integers("padding"), call.integers("stride"), call.integers("dilation"),
                call.integer("groups"), "add", std::nullopt, std::nullopt, c10::List<std::optional<at::Scalar>>(),
                std::nullopt);
      return;
    }
  }
  out.copy_(at::convolution(input, weight, bias, call.integers("stride"), call.integers("padding"),
                            call.integers("dilation"), transposed, call.integers("output_padding"),
                            call.integer("groups")));
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
