// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace neuron {

inline int64_t divide_up(int64_t x, int64_t y) { return (x + y - 1) / y; }
inline int64_t round_up(int64_t x, int64_t y) { return divide_up(x, y) * y; }

}  // namespace neuron
