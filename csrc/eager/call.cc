// SPDX-License-Identifier: Apache-2.0
#include "call.h"

#include <cstring>

#include <ATen/core/Tensor.h>
#include <c10/core/DefaultDtype.h>
#include <c10/util/StringUtil.h>

#include "../device/block.h"
#include "../device/current_device.h"

namespace neuron {
namespace {

// First word of each argument's part of the key: what kind of argument follows.
enum class Tag : uint64_t {
  None = 1,
  Tensor,
  Lanes,
  CpuScalar,
  Number,
  Int,
  Bool,
  Double,
  Complex,
  List,
  String,
  Placement,
};

constexpr uint64_t word(Tag tag, uint64_t a = 0, uint64_t b = 0) {
  return static_cast<uint64_t>(tag) << 56 | a << 40 | b;
}

uint64_t bits_of(double value) {
  uint64_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

}  // namespace

Call::Call(const OperatorEntry& entry, const c10::IValue* arguments, std::vector<OperandInfo>* infos)
    : entry_(entry), infos_(infos) {
  // No argument, but it decides the dtype of factories and of integers with a fraction.
  const at::ScalarType default_dtype = c10::get_default_dtype_as_scalartype();
  key.push_back(static_cast<uint64_t>(default_dtype));
  double_precision_ = default_dtype == at::kDouble;
  if (entry.lengths() != Lengths::Exact) lengths = length_class(entry, arguments);
  const auto& described = entry.arguments();
  for (size_t i = 0; i < described.size(); ++i) add_argument(described[i], arguments[i], static_cast<int>(i));
  if (!double_operands_.empty() && !double_precision_) finish_doubles();
  if (device < 0) device = current_device();
}

void Call::add_argument(const Argument& argument, const c10::IValue& value, int index) {
  if (value.isTensor()) {
    add_tensor(value.toTensor(), argument.role, index, -1);
  } else if (value.isNone()) {
    key.push_back(word(Tag::None));
  } else if (value.isGenerator()) {
    generator = value.toGenerator();
    key.push_back(word(Tag::Placement));
  } else if (value.isDevice()) {
    if (device < 0 && value.toDevice().type() == kNeuron && value.toDevice().has_index()) {
      device = value.toDevice().index();
    }
    key.push_back(word(Tag::Placement));
  } else if (argument.placement) {
    key.push_back(word(Tag::Placement));
  } else if (argument.scalar && (value.isInt() || value.isDouble() || value.isSymInt() || value.isSymFloat())) {
    add_number(value, index);
  } else if (value.isInt()) {
    const int64_t number = value.toInt();
    key.push_back(word(Tag::Int));
    key.push_back(static_cast<uint64_t>(number));
    if (argument.dtype && static_cast<at::ScalarType>(number) == at::kDouble) double_precision_ = true;
  } else if (value.isBool()) {
    key.push_back(word(Tag::Bool, value.toBool()));
  } else if (value.isDouble()) {
    key.push_back(word(Tag::Double));
    key.push_back(bits_of(value.toDouble()));
  } else if (value.isComplexDouble()) {
    key.push_back(word(Tag::Complex));
    key.push_back(bits_of(value.toComplexDouble().real()));
    key.push_back(bits_of(value.toComplexDouble().imag()));
  } else if (value.isIntList()) {
    const auto list = value.toIntVector();
    key.push_back(word(Tag::List, 0, list.size()));
    key.append(list.begin(), list.end());
  } else if (value.isSymInt()) {
    key.push_back(word(Tag::Int));
    key.push_back(static_cast<uint64_t>(value.toSymInt().guard_int(__FILE__, __LINE__)));
  } else if (value.isString()) {
    const std::string& text = value.toStringRef();
    key.push_back(word(Tag::String, 0, text.size()));
    for (size_t i = 0; i < text.size(); i += 8) {
      uint64_t chunk = 0;
      std::memcpy(&chunk, text.data() + i, std::min<size_t>(8, text.size() - i));
      key.push_back(chunk);
    }
  } else if (value.isList()) {
    const auto list = value.toListRef();
    key.push_back(word(Tag::List, 1, list.size()));
    Argument element = argument;
    element.scalar = false;  // numbers in lists are few and decide the program
    int position = 0;
    for (const c10::IValue& item : list) {
      if (item.isTensor()) {
        add_tensor(item.toTensor(), argument.role, index, position);
      } else {
        add_argument(element, item, index);
      }
      ++position;
    }
  } else {
    TORCH_CHECK_NOT_IMPLEMENTED(false, entry_.name(), ": the neuron device cannot take an argument of type ",
                                value.tagKind(), " (", entry_.handle().schema().arguments()[index].name(), ")");
  }
}

void Call::add_tensor(const at::Tensor& tensor, Role role, int index, int element) {
  if (!tensor.defined()) {
    key.push_back(word(Tag::None));
    return;
  }
  if (tensor.device().type() != kNeuron) {
    TORCH_CHECK(tensor.device().is_cpu() && tensor.dim() == 0 && role == Role::Input, entry_.name(),
                ": Expected all tensors to be on the same device, but found at least two devices, neuron and ",
                tensor.device(), " (argument ", entry_.handle().schema().arguments()[index].name(), " of shape ",
                tensor.sizes(), "); move it with .to(\"neuron\")");
    add_cpu_scalar(tensor, index, element);
    return;
  }
  if (device < 0) {
    device = tensor.device().index();
  } else {
    TORCH_CHECK(device == tensor.device().index(), entry_.name(),
                ": Expected all tensors to be on the same device, but found at least two devices, neuron:",
                static_cast<int>(device), " and ", tensor.device());
  }
  if (tensor.scalar_type() == at::kDouble || tensor.scalar_type() == at::kComplexDouble) double_precision_ = true;
  if (lengths.lanes > 0 && tensor.dim() == 1) {
    add_lanes(tensor, index, element);
  } else {
    add_view(tensor, role, index, element);
  }
}

// The lanes follow from the dtypes: the key needs neither them nor the length.
void Call::add_lanes(const at::Tensor& tensor, int index, int element) {
  key.push_back(word(Tag::Lanes, static_cast<uint64_t>(tensor.scalar_type())));
  Operand memory;
  memory.block = block_of(tensor);
  memory.offset = byte_offset(tensor);
  memory.bytes = static_cast<size_t>(lengths.lanes) * tensor.itemsize();
  operands.push_back(memory);
  if (infos_) {
    infos_->push_back({OperandInfo::Kind::Window, index, element, lengths.lanes, false, ScalarKind::None, false});
  }
  if (entry_.lengths() != Lengths::Each) return;
  add_scalar(ScalarKind::I64, static_cast<uint64_t>(tensor.size(0)), index, element, OperandInfo::Kind::Length);
}

void Call::add_view(const at::Tensor& tensor, Role role, int index, int element) {
  const bool contiguous = tensor.is_contiguous();
  const uint64_t kind =
      static_cast<uint64_t>(tensor.scalar_type()) << 8 | static_cast<uint64_t>(role) << 1 | contiguous;
  key.push_back(word(Tag::Tensor, kind, static_cast<uint64_t>(tensor.dim())));
  key.append(tensor.sizes().begin(), tensor.sizes().end());
  if (!contiguous) {
    // The stride of a dimension of one element means nothing: leave it out of the key.
    for (int64_t d = 0; d < tensor.dim(); ++d) key.push_back(tensor.size(d) > 1 ? tensor.stride(d) : 0);
  }
  if (role != Role::Input) targets.push_back({tensor, -1});
  if (tensor.numel() == 0) return;

  const ViewOperand view = view_operand(tensor);
  if (view.has_delta) {
    key.push_back(word(Tag::Tensor, 0xFFFF, 1));
    key.push_back(static_cast<uint64_t>(view.window));
  }
  if (role == Role::Written && !view.has_delta) return;  // its memory is a result only
  if (role != Role::Input) targets.back().operand = static_cast<int>(operands.size());
  operands.push_back(view.memory);
  if (infos_) {
    infos_->push_back({OperandInfo::Kind::Window, index, element, view.window, view.has_delta, ScalarKind::None,
                       role != Role::Input});
  }
  if (view.has_delta) {
    add_scalar(ScalarKind::I64, static_cast<uint64_t>(view.delta), index, element, OperandInfo::Kind::Delta);
  }
}

void Call::add_cpu_scalar(const at::Tensor& tensor, int index, int element) {
  const at::ScalarType dtype = tensor.scalar_type();
  const uint64_t kind =
      static_cast<uint64_t>(dtype) << 8 | static_cast<uint64_t>(tensor.unsafeGetTensorImpl()->is_wrapped_number());
  key.push_back(word(Tag::CpuScalar, kind));
  if (dtype == at::kDouble && !tensor.unsafeGetTensorImpl()->is_wrapped_number()) double_precision_ = true;
  const at::Scalar value = tensor.item();
  if (value.isComplex()) {
    key.push_back(bits_of(value.toComplexDouble().real()));
    key.push_back(bits_of(value.toComplexDouble().imag()));
  } else if (value.isFloatingPoint()) {
    add_double(value.toDouble(), index, element);
  } else if (value.isBoolean()) {
    add_scalar(ScalarKind::Bool, value.toBool(), index, element);
  } else {
    add_scalar(ScalarKind::I64, static_cast<uint64_t>(value.toLong()), index, element);
  }
}

void Call::add_number(const c10::IValue& value, int index) {
  if (value.isInt() || value.isSymInt()) {
    key.push_back(word(Tag::Number, 0));
    const int64_t number = value.isInt() ? value.toInt() : value.toSymInt().guard_int(__FILE__, __LINE__);
    add_scalar(ScalarKind::I64, static_cast<uint64_t>(number), index, -1);
  } else {
    key.push_back(word(Tag::Number, 1));
    const double number = value.isDouble() ? value.toDouble() : value.toSymFloat().guard_float(__FILE__, __LINE__);
    add_double(number, index, -1);
  }
}

void Call::add_scalar(ScalarKind kind, uint64_t bits, int index, int element, OperandInfo::Kind what) {
  operands.push_back(scalar_operand(kind, bits));
  if (infos_) infos_->push_back({what, index, element, 0, false, kind, false});
}

void Call::add_double(double value, int index, int element) {
  double_operands_.push_back(operands.size());
  add_scalar(ScalarKind::F64, bits_of(value), index, element);
}

void Call::finish_doubles() {
  for (size_t place : double_operands_) {
    double value;
    std::memcpy(&value, &operands[place].bits, sizeof value);
    const float narrow = static_cast<float>(value);
    uint32_t bits;
    std::memcpy(&bits, &narrow, sizeof bits);
    operands[place].bits = bits;
    operands[place].scalar = ScalarKind::F32;
    if (infos_) (*infos_)[place].scalar = ScalarKind::F32;
  }
}

}  // namespace neuron
