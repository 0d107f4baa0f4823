// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>

namespace neuron {

// Calls function(begin, end) for [0, count) in pieces of `piece` and more, on this thread and on helpers that all
// threads share, as many as ATen may use. Returns when all is done. For loops of some ten microseconds: OpenMP keeps a
// team for every thread of XLA's that calls a kernel, which makes more threads than processors, and waking one takes as
// long. `function` does not throw.
void shared_loop(int64_t count, int64_t piece, const std::function<void(int64_t begin, int64_t end)>& function);

}  // namespace neuron
