// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>

#include <neuroncore/neuroncore.h>

namespace neuron {

// Calls function(begin, end) for [0, count) in pieces of `piece` and more, on this thread and on as many others as ATen
// may use and there are pieces for. Returns when all is done; an exception of `function` is raised here.
//
// The others are XLA's, if XLA runs the program: OpenMP's would have to be woken for every kernel, would then compete
// with XLA's for the processors, and would be a team of their own for every thread of XLA's that calls a kernel. A
// program that is one kernel has no XLA; its loops are OpenMP's, like those of ATen's operators.
void shared_loop(int64_t count, int64_t piece, const std::function<void(int64_t begin, int64_t end)>& function);

// While it lives, the loops of this thread belong to `call`.
class LoopsOfCall {
 public:
  explicit LoopsOfCall(const neuroncore_kernel_call_t& call);
  ~LoopsOfCall();
  LoopsOfCall(const LoopsOfCall&) = delete;
  LoopsOfCall& operator=(const LoopsOfCall&) = delete;

 private:
  const neuroncore_kernel_call_t* outer_;
};

}  // namespace neuron
