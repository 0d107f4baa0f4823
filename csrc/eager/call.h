// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <vector>

#include <ATen/core/Generator.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>

#include "operator_entry.h"
#include "view_operand.h"

namespace neuron {

// A tensor that the operator writes.
struct Target {
  at::Tensor tensor;
  int operand = -1;  // its memory among the operands, where the program reads that too
};

// What the miss handler is told about one operand.
struct OperandInfo {
  enum class Kind : uint8_t { Window, Delta, Length, Scalar };
  Kind kind;
  int argument;
  int element;  // within a list argument, else -1
  int64_t window;
  bool has_delta;
  ScalarKind scalar;
  bool updated;
};

// One call of an operator, taken apart: the key that decides which program serves it, and the
// operands of the launch. The key holds every argument but those that are operands: numbers and
// 0-dim CPU tensors (a new value needs no new program), the device, and tensors' addresses.
class Call {
 public:
  Call(const OperatorEntry& entry, const c10::IValue* arguments, std::vector<OperandInfo>* infos = nullptr);

  Key key;
  c10::SmallVector<Operand, 8> operands;
  c10::SmallVector<Target, 2> targets;
  c10::DeviceIndex device = -1;
  std::optional<at::Generator> generator;
  LengthClass lengths;

 private:
  void add_argument(const Argument& argument, const c10::IValue& value, int index);
  void add_tensor(const at::Tensor& tensor, Role role, int index, int element);
  void add_view(const at::Tensor& tensor, Role role, int index, int element);
  void add_lanes(const at::Tensor& tensor, int index, int element);
  void add_cpu_scalar(const at::Tensor& tensor, int index, int element);
  void add_number(const c10::IValue& value, int index);
  void add_scalar(ScalarKind kind, uint64_t bits, int index, int element,
                  OperandInfo::Kind what = OperandInfo::Kind::Scalar);
  void add_double(double value, int index, int element);
  void finish_doubles();

  const OperatorEntry& entry_;
  std::vector<OperandInfo>* infos_;
  bool double_precision_ = false;                // some tensor is float64: floats are handed over as such
  c10::SmallVector<size_t, 4> double_operands_;  // to be narrowed otherwise
};

}  // namespace neuron
