// SPDX-License-Identifier: Apache-2.0
#include "length_class.h"

#include <algorithm>

#include <ATen/core/Tensor.h>

#include "../device/block.h"
#include "../device/current_device.h"
#include "../device/size_class.h"
#include "operator_entry.h"
#include "view_operand.h"

namespace neuron {
namespace {

// A window of the widest operand. Every block has as much, so that all tensors with a block of their own fit.
constexpr size_t kWindowBytes = size_class::kSmallest;

// Whether the tensor's memory goes on for `bytes` from its first element, which is aligned as operands must be.
bool has_window(const at::Tensor& tensor, size_t bytes) {
  const size_t stored = tensor.storage().nbytes();
  const size_t offset = byte_offset(tensor);
  return stored > 0 && offset % kOperandAlignment == 0 && offset + bytes <= size_class::rounded(stored);
}

// The lanes that operands of at most `widest` bytes an element have; 0 if `length` elements are too many, or none.
int64_t lanes_for(int64_t length, size_t widest) {
  const int64_t lanes = widest > 0 ? static_cast<int64_t>(kWindowBytes / widest) : 0;
  return length > 0 && length <= lanes ? lanes : 0;
}

bool is_short(const at::Tensor& tensor) {
  return tensor.dim() == 1 && tensor.device().type() == kNeuron && tensor.is_contiguous() && tensor.size(0) > 0;
}

LengthClass pointwise_class(const c10::IValue* arguments, size_t count) {
  int64_t length = 0;
  size_t widest = 0;
  for (size_t i = 0; i < count; ++i) {
    if (arguments[i].isList()) return {};
    if (!arguments[i].isTensor()) continue;
    const at::Tensor& tensor = arguments[i].toTensor();
    if (!tensor.defined() || tensor.dim() == 0) continue;
    if (!is_short(tensor) || (length > 0 && tensor.size(0) != length)) return {};
    length = tensor.size(0);
    widest = std::max(widest, tensor.itemsize());
  }
  const int64_t lanes = lanes_for(length, widest);
  if (lanes == 0) return {};
  for (size_t i = 0; i < count; ++i) {
    if (!arguments[i].isTensor()) continue;
    const at::Tensor& tensor = arguments[i].toTensor();
    if (tensor.defined() && tensor.dim() == 1 && !has_window(tensor, lanes * tensor.itemsize())) return {};
  }
  return {lanes, length};
}

LengthClass joined_class(const c10::IValue& tensors) {
  int64_t length = 0;
  size_t widest = 0;
  const auto list = tensors.toListRef();
  for (const c10::IValue& item : list) {
    const at::Tensor& tensor = item.toTensor();
    if (!tensor.defined() || !is_short(tensor)) return {};
    length += tensor.size(0);
    widest = std::max(widest, tensor.itemsize());
  }
  const int64_t lanes = lanes_for(length, widest);
  if (lanes == 0) return {};
  for (const c10::IValue& item : list) {
    const at::Tensor& tensor = item.toTensor();
    if (!has_window(tensor, lanes * tensor.itemsize())) return {};
  }
  return {lanes, length};
}

}  // namespace

LengthClass length_class(const OperatorEntry& entry, const c10::IValue* arguments) {
  switch (entry.lengths()) {
    case Lengths::Shared:
      return pointwise_class(arguments, entry.arguments().size());
    case Lengths::Each:
      return joined_class(arguments[0]);
    default:
      return {};
  }
}

}  // namespace neuron
