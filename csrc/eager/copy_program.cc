// SPDX-License-Identifier: Apache-2.0
#include "copy_program.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include "dispatch.h"
#include "registration.h"

namespace neuron {

void copy_on_device(const at::Tensor& destination, const at::Tensor& source) {
  // The overload's kernel is the copy of csrc/tensor, which comes here for what needs a program:
  // the entry is used without it.
  static OperatorEntry& entry = operator_entry(c10::Dispatcher::singleton().findSchemaOrThrow("aten::copy_", ""));
  if (destination.numel() == 0) return;
  torch::jit::Stack stack{destination, source, /*non_blocking=*/false};
  run_operator(entry, &stack);
}

}  // namespace neuron
