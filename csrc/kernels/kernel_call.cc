// SPDX-License-Identifier: Apache-2.0
#include "kernel_call.h"

#include <cstdlib>
#include <cstring>

#include <ATen/ops/from_blob.h>

namespace neuron {
namespace {

at::ScalarType scalar_type(int32_t element_type) {
  switch (element_type) {
    case NEURONCORE_TYPE_F32:
      return at::kFloat;
    case NEURONCORE_TYPE_BF16:
      return at::kBFloat16;
    case NEURONCORE_TYPE_F16:
      return at::kHalf;
    default:
      TORCH_CHECK(false, "expected a buffer of f32, bf16 or f16, got element type ", element_type);
  }
}

at::Tensor tensor_over(const neuroncore_buffer_t& buffer) {
  const at::IntArrayRef sizes(buffer.dims, static_cast<size_t>(buffer.rank));
  return at::from_blob(buffer.data, sizes, at::TensorOptions(scalar_type(buffer.element_type)));
}

}  // namespace

const neuroncore_buffer_t& KernelCall::input_buffer(size_t index) const {
  TORCH_CHECK(index < call_.num_inputs, "expected more than ", index, " operands, got ", call_.num_inputs);
  return call_.inputs[index];
}

const neuroncore_buffer_t& KernelCall::output_buffer(size_t index) const {
  TORCH_CHECK(index < call_.num_outputs, "expected more than ", index, " results, got ", call_.num_outputs);
  return call_.outputs[index];
}

at::Tensor KernelCall::input(size_t index) const { return tensor_over(input_buffer(index)); }
at::Tensor KernelCall::output(size_t index) const { return tensor_over(output_buffer(index)); }

std::string KernelCall::text(const char* name) const {
  const size_t length = std::strlen(name);
  for (const char* entry = call_.config; *entry != '\0';) {
    const char* end = std::strchr(entry, ';');
    if (end == nullptr) end = entry + std::strlen(entry);
    if (std::strncmp(entry, name, length) == 0 && entry[length] == '=') {
      return std::string(entry + length + 1, end);
    }
    entry = *end == ';' ? end + 1 : end;
  }
  TORCH_CHECK(false, "expected `", name, "` in the configuration \"", call_.config, "\"");
}

std::vector<int64_t> KernelCall::integers(const char* name) const {
  const std::string list = text(name);
  std::vector<int64_t> values;
  for (const char* entry = list.c_str(); *entry != '\0';) {
    char* end = nullptr;
    values.push_back(std::strtoll(entry, &end, 10));
    TORCH_CHECK(end != entry, "expected integers in `", name, "`, got \"", list, "\"");
    entry = *end == ',' ? end + 1 : end;
  }
  return values;
}

double KernelCall::number(const char* name) const { return std::strtod(text(name).c_str(), nullptr); }

}  // namespace neuron
