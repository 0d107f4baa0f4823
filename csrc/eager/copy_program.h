// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

namespace neuron {

// destination.copy_(source) for two tensors of one device: any strides, dtypes and broadcasting,
// as one compiled program.
void copy_on_device(const at::Tensor& destination, const at::Tensor& source);

}  // namespace neuron
