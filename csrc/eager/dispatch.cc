// SPDX-License-Identifier: Apache-2.0
#include "dispatch.h"

#include <ATen/core/Tensor.h>
#include <ATen/native/Resize.h>
#include <c10/core/TensorImpl.h>

#include "../device/allocator.h"
#include "../device/current_device.h"
#include "../device/generator.h"
#include "../device/launch_queue.h"
#include "../nrt/environment.h"
#include "../tensor/factories.h"

namespace neuron {
namespace {

// The aligned memory of a target that is only written, or the window that its update replaces.
Operand target_memory(const Target& target, const c10::SmallVector<Operand, 8>& operands) {
  return target.operand >= 0 ? operands[target.operand] : view_operand(target.tensor).memory;
}

// A result of the call's length in memory for all lanes that the program yields.
at::Tensor new_short_tensor(const Output& output, const Call& call) {
  at::Tensor tensor = new_tensor({call.lengths.length}, {1}, output.dtype, output.bytes, call.device);
  tensor.storage().unsafeGetStorageImpl()->set_nbytes(static_cast<size_t>(call.lengths.length) * tensor.itemsize());
  return tensor;
}

// Gives out= arguments the shape of the result, as PyTorch does (with its warning); true if any changed.
bool resize_targets(const Entry& entry, const Call& call) {
  bool resized = false;
  for (const Output& output : entry.outputs) {
    if (output.target < 0 || !output.defined) continue;
    const at::Tensor& tensor = call.targets[output.target].tensor;
    if (tensor.sizes() != output.sizes) resized |= at::native::resize_output(tensor, output.sizes);
  }
  return resized;
}

void push_returns(const OperatorEntry& op, const Entry& entry, std::vector<at::Tensor> fresh,
                  torch::jit::Stack* stack) {
  const size_t argument_count = op.arguments().size();
  const auto& aliases = op.return_aliases();
  std::vector<c10::IValue> results;
  results.reserve(aliases.size());
  size_t next = 0, layout = 0;
  for (int alias : aliases) {
    if (alias >= 0) {
      results.push_back(torch::jit::peek(*stack, alias, argument_count));
      continue;
    }
    const int64_t count = entry.returns[layout++];
    if (count < -1) {
      results.emplace_back(-2 - count);
      ++next;  // among the tensors it stands as an undefined one
    } else if (count < 0) {
      results.emplace_back(std::move(fresh[next++]));
    } else {
      c10::List<at::Tensor> list;
      for (int64_t i = 0; i < count; ++i) list.push_back(std::move(fresh[next++]));
      results.emplace_back(std::move(list));
    }
  }
  torch::jit::drop(*stack, argument_count);
  for (auto& result : results) stack->push_back(std::move(result));
}

void launch(const OperatorEntry& op, const Entry& entry, Call& call, torch::jit::Stack* stack) {
  const size_t argument_count = op.arguments().size();
  std::vector<at::Tensor> fresh;
  c10::SmallVector<Operand, 4> outputs;
  for (const Output& output : entry.outputs) {
    if (output.target >= 0) {
      if (output.numel > 0) outputs.push_back(target_memory(call.targets[output.target], call.operands));
      continue;
    }
    if (!output.defined) {
      fresh.emplace_back();
      continue;
    }
    fresh.push_back(call.lengths.lanes > 0
                        ? new_short_tensor(output, call)
                        : new_tensor(output.sizes, output.strides, output.dtype, output.bytes, call.device));
    if (output.numel > 0) outputs.push_back(whole_block(fresh.back(), output.bytes));
  }
  if (entry.program) {
    if (entry.random_increment > 0) {
      const auto [seed, offset] = draw_philox_state(call.generator, call.device, entry.random_increment);
      for (uint64_t bits : {seed, offset}) call.operands.push_back(scalar_operand(ScalarKind::I64, bits));
    }
    LaunchQueue& queue = LaunchQueue::of(call.device);
    const CallSite site = current_call_site();
    queue.enqueue(entry.program->estimated_us(), [&](Launch& slot) {
      slot.program = entry.program;
      slot.inputs = call.operands;
      slot.outputs = outputs;
      slot.site = site;
    });
    if (environment::launch_blocking()) queue.synchronize();
  }
  if (fresh.size() == 1 && op.return_aliases().size() == 1 && entry.returns[0] == -1) {
    torch::jit::drop(*stack, argument_count);
    stack->emplace_back(std::move(fresh[0]));
  } else {
    push_returns(op, entry, std::move(fresh), stack);
  }
}

// Index tensors may lie on the CPU, as for other devices: they are copied.
void move_indices(const OperatorEntry& op, c10::IValue* arguments) {
  for (size_t i = 0; i < op.arguments().size(); ++i) {
    if (!op.arguments()[i].indices) continue;
    c10::DeviceIndex device = arguments[0].isTensor() ? arguments[0].toTensor().device().index() : current_device();
    bool moved = false;
    c10::List<std::optional<at::Tensor>> list;
    for (const c10::IValue& item : arguments[i].toListRef()) {
      std::optional<at::Tensor> index = item.toOptional<at::Tensor>();
      if (index && index->defined() && index->is_cpu()) {
        index = index->to(at::Device(kNeuron, device));
        moved = true;
      }
      list.push_back(std::move(index));
    }
    if (moved) arguments[i] = std::move(list);
  }
}

const Entry* look_up(OperatorEntry& op, const c10::IValue* arguments, const Call& call) {
  const uint64_t hash = hash_key(call.key);
  if (const Entry* entry = op.find(call.key, hash)) return entry;
  std::vector<OperandInfo> infos;
  const Call described(op, arguments, &infos);
  std::unique_ptr<Entry> made = handle_miss(op, arguments, described, infos);
  made->key = call.key;
  return op.insert(std::move(made), hash);
}

}  // namespace

void run_operator(OperatorEntry& op, torch::jit::Stack* stack) {
  const CurrentOperator named(op.name().c_str());
  c10::IValue* arguments = stack->data() + (stack->size() - op.arguments().size());
  if (op.takes_indices()) move_indices(op, arguments);
  const Entry* entry = nullptr;
  {
    Call call(op, arguments);
    entry = look_up(op, arguments, call);
    if (!entry->fallback && !resize_targets(*entry, call)) {
      op.executed.store(true, std::memory_order_relaxed);
      launch(op, *entry, call, stack);
      return;
    }
  }
  if (entry->fallback) {
    run_on_cpu(op, stack);
    return;
  }
  // An out= argument has taken the shape of the result: with that, it is another key.
  Call call(op, arguments);
  entry = look_up(op, arguments, call);
  op.executed.store(true, std::memory_order_relaxed);
  launch(op, *entry, call, stack);
}

}  // namespace neuron
