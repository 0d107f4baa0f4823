// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

namespace neuron {

// Kernels of aten::resize_ and of the overloads of aten::set_ that need the device's storage.
const at::Tensor& resize_(const at::Tensor& self, at::IntArrayRef size, std::optional<at::MemoryFormat> memory_format);
at::Tensor& set_storage_(at::Tensor& self, at::Storage source, int64_t storage_offset, at::IntArrayRef size,
                         at::IntArrayRef stride);
at::Tensor& set_empty_(at::Tensor& self);

}  // namespace neuron
