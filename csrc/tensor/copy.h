// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

namespace neuron {

// destination.copy_(source) where at least one of them is on a neuron device: any strides, dtypes,
// broadcasting, conjugate and negative views.
void copy(const at::Tensor& destination, const at::Tensor& source, bool non_blocking);

}  // namespace neuron
