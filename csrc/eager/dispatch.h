// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/stack.h>

#include "call.h"

namespace neuron {

// Runs one call on the device: looks its program up (asking the miss handler for a new key),
// allocates the results, enqueues the launch, and replaces the arguments on the stack by the
// results. Falls back to the CPU where the miss handler says so.
void run_operator(OperatorEntry& entry, torch::jit::Stack* stack);

// The miss handler (Python): decides about a key that was not met before. Raises what the
// operator's meta kernel raises for unsuitable arguments.
std::unique_ptr<Entry> handle_miss(const OperatorEntry& entry, const c10::IValue* arguments, const Call& call,
                                   const std::vector<OperandInfo>& infos);

// Runs the call with CPU copies of its tensors; warns once an operator (TORCH_NEURONX_FALLBACK).
void run_on_cpu(OperatorEntry& entry, torch::jit::Stack* stack);

}  // namespace neuron
