// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/TensorBase.h>
#include <c10/core/Storage.h>

#include <nrt/nrt.h>

namespace neuron {

// The allocator block behind a storage: the NRT tensor that the storage's data pointer stands for.
// Null for a storage of zero bytes. The handle is opaque to everything outside csrc/nrt.
// Looked up through DataPtr::get(), never get_context(): pickling rebuilds storages without one.
inline nrt_tensor_t* block_of(const c10::StorageImpl& storage) {
  return static_cast<nrt_tensor_t*>(const_cast<void*>(storage.data_ptr().get()));
}

// Size of the block (at least the storage's bytes: requests are rounded up to size classes).
size_t block_size(nrt_tensor_t* block);

}  // namespace neuron
