// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include <neuroncore/neuroncore.h>

// What the host kernels share: operands as tensors, the configuration, errors.
namespace neuron {

// One call: buffers of the core as CPU tensors over the same memory, valid until the call returns.
class KernelCall {
 public:
  explicit KernelCall(const neuroncore_kernel_call_t& call) : call_(call) {}

  size_t num_inputs() const { return call_.num_inputs; }
  size_t num_outputs() const { return call_.num_outputs; }
  at::Tensor input(size_t index) const;
  at::Tensor output(size_t index) const;
  // The same as they are, of any element type.
  const neuroncore_buffer_t& input_buffer(size_t index) const;
  const neuroncore_buffer_t& output_buffer(size_t index) const;

  // Values of "name=value;name=1,2": the text of one, its integers, its number. Raise when it is missing.
  std::string text(const char* name) const;
  std::vector<int64_t> integers(const char* name) const;
  int64_t integer(const char* name) const { return integers(name).at(0); }
  double number(const char* name) const;

 private:
  const neuroncore_kernel_call_t& call_;
};

// Elements of the first `dims` dimensions.
inline int64_t leading_extent(const neuroncore_buffer_t& buffer, int32_t dims) {
  int64_t count = 1;
  for (int32_t d = 0; d < dims; ++d) count *= buffer.dims[d];
  return count;
}

// Rows of `count` elements that make up a thread's least share of `elements`.
inline int64_t rows_of_share(int64_t elements, int64_t count) {
  return std::max<int64_t>(1, elements / std::max<int64_t>(1, count));
}

using Kernel = void (*)(const KernelCall& call);

void attention(const KernelCall& call);
void attention_backward(const KernelCall& call);
void attention_few_queries(const KernelCall& call);
void convolution(const KernelCall& call);
void convolution_backward(const KernelCall& call);
void cross_entropy_gradient(const KernelCall& call);
void gated_silu(const KernelCall& call);
void grouped_matmul(const KernelCall& call);
void group_moments(const KernelCall& call);
void log_softmax(const KernelCall& call);
void matmul(const KernelCall& call);
void matmul_few_rows(const KernelCall& call);
void normalize_channels(const KernelCall& call);
void pointwise(const KernelCall& call);
void rms_norm(const KernelCall& call);
void rotary(const KernelCall& call);
void softmax_statistics(const KernelCall& call);

}  // namespace neuron
