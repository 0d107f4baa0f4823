// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <ATen/core/ivalue.h>

namespace neuron {

class OperatorEntry;

// Short 1-D tensors (a scheduler's steps, a batch's lengths) come in many lengths. Operators that treat every element
// alike serve them all with one program: it works on windows, so many lanes of memory from where each operand begins,
// and yields as many. What lies beyond the length is anything; nobody reads it, and the result owns the memory.
enum class Lengths : uint8_t {
  Exact,   // the operator's program depends on the lengths
  Shared,  // pointwise: operands of one length
  Each,    // aten::cat: every length is an operand of the program
};

struct LengthClass {
  int64_t lanes = 0;   // elements of every window; 0: the call is served by its exact shapes
  int64_t length = 0;  // elements of the result
};

// Whether the call's operands, all of them contiguous and 1-D (or 0-dim, if pointwise), can be handed over as windows.
LengthClass length_class(const OperatorEntry& entry, const c10::IValue* arguments);

}  // namespace neuron
