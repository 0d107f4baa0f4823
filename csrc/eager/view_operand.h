// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <ATen/core/TensorBase.h>

#include "../device/launch_queue.h"

namespace neuron {

// How a tensor is handed to a program: as the run of memory that contains it. Whatever view it is
// of that memory becomes the first step of the program.
//
// Dense tensors (contiguous, permuted, expanded) at an aligned offset are exactly their memory. For
// others the run is extended to whole rows of the parent, and where the view begins in it is an
// operand of the program, so that all slices of one shape share one program.
struct ViewOperand {
  Operand memory;
  int64_t window = 0;      // elements of `memory`
  bool has_delta = false;  // `delta` is handed over as a further operand
  int64_t delta = 0;       // elements from the start of the window to the view's first element
};

// Requires numel() > 0.
ViewOperand view_operand(const at::TensorBase& tensor);

// All of a tensor that owns its storage, which holds `bytes`.
Operand whole_block(const at::TensorBase& tensor, size_t bytes);

// Memory must begin at such an address (the software core's compiler assumes it).
constexpr size_t kOperandAlignment = 64;

}  // namespace neuron
