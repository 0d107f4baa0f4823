// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/TensorBase.h>
#include <c10/core/Storage.h>

#include <nrt/nrt.h>

namespace neuron {

// Deleter of every storage that the allocator made: returns the block to it.
void free_block(void* block);
// Checks a handle that came from elsewhere (pickling, DLPack): such a storage holds the address
// of a live block, or it is refused.
nrt_tensor_t* block_of_foreign_storage(const void* handle);

// The allocator block behind a storage: the NRT tensor that the storage's data pointer stands for.
// Null for a storage of zero bytes. The handle is opaque to everything outside csrc/nrt.
// Looked up through DataPtr::get(), never get_context(): pickling rebuilds storages without one.
inline nrt_tensor_t* block_of(const c10::StorageImpl& storage) {
  const c10::DataPtr& pointer = storage.data_ptr();
  if (C10_UNLIKELY(pointer.get_deleter() != &free_block && pointer.get() != nullptr))
    return block_of_foreign_storage(pointer.get());
  return static_cast<nrt_tensor_t*>(const_cast<void*>(pointer.get()));
}

inline nrt_tensor_t* block_of(const at::TensorBase& tensor) {
  return block_of(*tensor.storage().unsafeGetStorageImpl());
}

// Where the tensor's first element lies in its block, in bytes.
inline size_t byte_offset(const at::TensorBase& tensor) {
  return static_cast<size_t>(tensor.storage_offset()) * tensor.itemsize();
}

// Size of the block (at least the storage's bytes: requests are rounded up to size classes).
size_t block_size(nrt_tensor_t* block);

}  // namespace neuron
