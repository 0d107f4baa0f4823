// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>

#include "vectorized.h"

namespace neuron {

// x / (1 + exp(-x)), by the exponential of a number that is not positive.
NEURON_INLINE float silu(float x) {
  const float e = exponential(-std::fabs(x));
  return x * (x < 0 ? e : 1.0f) / (1.0f + e);
}

}  // namespace neuron
