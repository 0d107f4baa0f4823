// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace neuron {

// Where an operation came from, for errors that surface later. `code` is a PyCodeObject kept
// alive for good; `instruction` is the byte offset of the call within it.
struct CallSite {
  const void* code = nullptr;
  int instruction = -1;
};

// The innermost Python frame of the calling thread outside PyTorch and this package. Takes some
// tens of nanoseconds, needs no interpreter lock.
CallSite current_call_site();

// Whether the innermost Python frame is PyTorch's formatter of tensors.
bool called_by_printing();

// "/path/model.py:12 in forward", or "" when unknown. Takes the interpreter lock.
std::string describe(const CallSite& site);

}  // namespace neuron
