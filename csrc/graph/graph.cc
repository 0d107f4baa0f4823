// SPDX-License-Identifier: Apache-2.0
#include "graph.h"

#include <cstring>
#include <set>

#include <c10/core/TensorImpl.h>

#include "../device/allocator.h"
#include "../device/current_device.h"
#include "../device/current_operator.h"
#include "../device/generator.h"
#include "../eager/view_operand.h"
#include "../nrt/environment.h"
#include "../tensor/factories.h"

namespace neuron {
namespace {

bool is_scalar(const at::Tensor& tensor) { return tensor.device().is_cpu() && tensor.dim() == 0; }

ScalarKind scalar_kind(at::ScalarType dtype) {
  if (dtype == at::kBool) return ScalarKind::Bool;
  if (dtype == at::kDouble) return ScalarKind::F64;
  return at::isFloatingType(dtype) ? ScalarKind::F32 : ScalarKind::I64;
}

Operand number_operand(const at::Tensor& tensor) {
  const ScalarKind kind = scalar_kind(tensor.scalar_type());
  const at::Scalar value = tensor.item();
  uint64_t bits = 0;
  if (kind == ScalarKind::F64) {
    const double number = value.toDouble();
    std::memcpy(&bits, &number, sizeof number);
  } else if (kind == ScalarKind::F32) {
    const float number = value.toFloat();
    std::memcpy(&bits, &number, sizeof number);
  } else {
    bits = kind == ScalarKind::Bool ? value.toBool() : static_cast<uint64_t>(value.toLong());
  }
  return scalar_operand(kind, bits);
}

// The stride of a dimension of one element means nothing.
bool same_strides(const at::Tensor& tensor, const GraphInput& input) {
  const auto sizes = tensor.sizes();
  const auto strides = tensor.strides();
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] > 1 && strides[d] != input.strides[d]) return false;
  }
  return true;
}

// Appends the operands of `tensor` if it is what the program expects.
bool append_operands(const at::Tensor& tensor, const GraphInput& input, c10::SmallVector<Operand, 8>& operands) {
  if (tensor.scalar_type() != input.dtype || tensor.sizes() != input.sizes || is_scalar(tensor) != input.scalar) {
    return false;
  }
  if (input.scalar) {
    operands.push_back(number_operand(tensor));
    return true;
  }
  if (input.window == 0) return tensor.numel() == 0;
  if (input.whole_bytes > 0 && tensor.storage_offset() == 0 && tensor.is_contiguous()) {
    operands.push_back(whole_block(tensor, input.whole_bytes));
    operands.back().whole = input.whole_bytes >= tensor.storage().unsafeGetStorageImpl()->nbytes();
    return true;
  }
  if (!same_strides(tensor, input)) return false;
  const ViewOperand view = view_operand(tensor);
  if (view.window != input.window || view.has_delta != input.has_delta) return false;
  operands.push_back(view.memory);
  if (view.has_delta) operands.push_back(scalar_operand(ScalarKind::I64, static_cast<uint64_t>(view.delta)));
  return true;
}

at::Tensor view_of(const at::Tensor& source, const GraphReturn& described) {
  at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(c10::TensorImpl::VIEW, c10::Storage(source.storage()),
                                                               source.key_set(), source.dtype());
  c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(described.sizes, described.strides, source.storage_offset() + described.offset);
  return tensor;
}

// Leaked: launches may outlive the interpreter.
struct OperatorLog {
  std::mutex mutex;
  std::atomic<uint64_t> epoch{1};
  std::set<std::string> names;
};
OperatorLog& operator_log() {
  static auto* log = new OperatorLog;
  return *log;
}

}  // namespace

std::vector<std::string> executed_graph_operators() {
  OperatorLog& log = operator_log();
  std::lock_guard<std::mutex> lock(log.mutex);
  return {log.names.begin(), log.names.end()};
}

void clear_graph_operator_log() {
  OperatorLog& log = operator_log();
  std::lock_guard<std::mutex> lock(log.mutex);
  log.names.clear();
  log.epoch.fetch_add(1, std::memory_order_release);
}

GraphInput describe_input(const at::Tensor& tensor) {
  GraphInput input;
  input.dtype = tensor.scalar_type();
  input.sizes = tensor.sizes();
  input.strides = tensor.strides();
  input.scalar = is_scalar(tensor);
  if (input.scalar || tensor.numel() == 0) return input;
  const ViewOperand view = view_operand(tensor);
  input.window = view.window;
  input.has_delta = view.has_delta;
  return input;
}

const GraphProgram* Graph::match(Tensors tensors, c10::SmallVector<Operand, 8>& operands,
                                 c10::DeviceIndex& device) const {
  for (const at::Tensor* input : tensors) {
    const at::Tensor& tensor = *input;
    if (tensor.device().type() != kNeuron) {
      TORCH_CHECK(is_scalar(tensor), name_, ": an input of shape ", tensor.sizes(), " is on ", tensor.device(),
                  ", not on the neuron device; move it with .to(\"neuron\")");
      continue;
    }
    if (device < 0) device = tensor.device().index();
    TORCH_CHECK(device == tensor.device().index(), name_,
                ": the inputs of a compiled graph are on two devices, neuron:", static_cast<int>(device), " and ",
                tensor.device(), "; move them to one");
  }
  if (device < 0) device = current_device();
  const auto suits = [&](const GraphProgram& program) {
    operands.clear();
    operands.reserve(tensors.size() + program.constants.size() + 2);
    for (size_t i = 0; i < tensors.size(); ++i) {
      if (!append_operands(*tensors[i], program.inputs[i], operands)) return false;
    }
    return true;
  };
  const GraphProgram* latest = latest_.load(std::memory_order_acquire);
  if (latest && suits(*latest)) return latest;
  std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& program : programs_) {
    if (program.get() != latest && suits(*program)) {
      latest_.store(program.get(), std::memory_order_release);
      return program.get();
    }
  }
  return nullptr;
}

const GraphProgram* Graph::add(std::unique_ptr<GraphProgram> program) {
  std::lock_guard<std::mutex> lock(mutex_);
  programs_.push_back(std::move(program));
  latest_.store(programs_.back().get(), std::memory_order_release);
  return programs_.back().get();
}

std::vector<at::Tensor> Graph::launch(const GraphProgram& program, Tensors tensors,
                                      c10::SmallVector<Operand, 8>& operands, c10::DeviceIndex device) const {
  const CurrentOperator named(name_.c_str());
  OperatorLog& log = operator_log();
  if (const uint64_t epoch = log.epoch.load(std::memory_order_acquire);
      logged_.exchange(epoch, std::memory_order_relaxed) != epoch) {
    std::lock_guard<std::mutex> lock(log.mutex);
    log.names.insert(program.operators.begin(), program.operators.end());
  }
  std::vector<at::Tensor> fresh(program.outputs.size());
  c10::SmallVector<Operand, 4> outputs;
  for (size_t i = 0; i < program.outputs.size(); ++i) {
    const GraphOutput& output = program.outputs[i];
    if (output.operand >= 0) {
      outputs.push_back(operands[static_cast<size_t>(output.operand)]);
      continue;
    }
    fresh[i] = new_tensor(output.sizes, output.strides, output.dtype, output.bytes, device);
    if (output.bytes > 0) outputs.push_back(whole_block(fresh[i], output.bytes));
  }
  if (program.program) {
    for (const at::Tensor& constant : program.constants) operands.push_back(view_operand(constant).memory);
    if (program.random_increment > 0) {
      const auto [seed, offset] = draw_philox_state(std::nullopt, device, program.random_increment);
      for (uint64_t bits : {seed, offset}) operands.push_back(scalar_operand(ScalarKind::I64, bits));
    }
    LaunchQueue& queue = LaunchQueue::of(device);
    const CallSite site = current_call_site();
    const uint64_t sequence =
        queue.enqueue(program.is_awaited ? kAwaitedUs : program.program->estimated_us(), [&](Launch& slot) {
          slot.program = program.program;
          slot.inputs = std::move(operands);
          slot.outputs = std::move(outputs);
          slot.site = site;
        });
    queue.offer(sequence);
    if (environment::launch_blocking()) queue.synchronize();
  }
  std::vector<at::Tensor> returned(program.returns.size());
  for (size_t i = 0; i < program.returns.size(); ++i) {
    const GraphReturn& described = program.returns[i];
    if (described.source == GraphReturn::Source::None) continue;
    const auto index = static_cast<size_t>(described.index);
    const at::Tensor& source = described.source == GraphReturn::Source::Input ? *tensors[index] : fresh[index];
    returned[i] = described.view ? view_of(source, described) : source;
  }
  return returned;
}

}  // namespace neuron
