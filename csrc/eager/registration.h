// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "operator_entry.h"

namespace neuron {

// Enters an overload ("aten::add.Tensor") and registers its kernel for the device. With `whole`,
// a composite operator keeps PyTorch's decomposition wherever a gradient is wanted. lengths: "exact", "shared" or
// "each", see length_class.h.
void register_operator(const std::string& name, const std::string& log_name, const std::vector<std::string>& statics,
                       const std::vector<std::string>& updated, const std::vector<std::string>& written, bool whole,
                       bool with_kernel, const std::string& lengths);

// The entry of an overload; enters it with what its schema says if it is new.
OperatorEntry& operator_entry(const c10::OperatorHandle& handle);

// Registers the kernel that takes every operator without one of its own.
void register_fallback();

// Operators that ran on the device, and those that ran on the CPU, since the last clear.
std::vector<std::string> executed_operators();
std::vector<std::string> fallback_operators();
void clear_operator_log();

// Calls torch_neuronx.eager.register once, before the first operator runs.
void ensure_operators_registered();

}  // namespace neuron
