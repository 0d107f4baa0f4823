// SPDX-License-Identifier: Apache-2.0
#include <ATen/ops/_log_softmax.h>

#include "kernel_call.h"

namespace neuron {

// Of float32, along the last dimension.
void log_softmax(const KernelCall& call) {
  at::Tensor result = call.output(0);
  at::_log_softmax_out(result, call.input(0), -1, /*half_to_float=*/false);
}

}  // namespace neuron
