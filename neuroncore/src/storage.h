// SPDX-License-Identifier: Apache-2.0
//
// A block of memory that programs can use directly: a PJRT buffer of plain bytes, reference-counted.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <vector>

#include "pjrt_api.h"
#include "plugin.h"

namespace neuroncore {

struct Core;

struct Storage {
  uint64_t magic = 0;  // only for Slab
  std::atomic<uint32_t> references{1};
  // How many operands of the execution in progress use this block. Guarded by the core's execution mutex.
  uint32_t uses = 0;
  Core* core = nullptr;
  pjrt::Buffer* handle = nullptr;
  size_t bytes = 0;

  // New uninitialized memory (recycled when there is some of that size), or null after Fail().
  static Storage* Allocate(Core* core, size_t bytes);
  // Takes over a buffer that a program returned.
  static Storage* Adopt(Core* core, pjrt::Buffer* handle, size_t bytes);

  void Reference() { references.fetch_add(1, std::memory_order_relaxed); }
  // The last one recycles or destroys the block.
  void Release();
  void Destroy();

  char* data();
  // Only memory of PJRT itself is updated in place by a program that it is donated to; a view would be copied. Resolves
  // the address, because while the program runs there is no handle to ask, and another thread may be reading.
  bool donatable() { return host_block_ == nullptr && handle != nullptr && data() != nullptr; }
  // After a donation: the program returned the same memory under a new handle.
  void ReplaceHandle(pjrt::Buffer* returned);
  // After a failed execution that may have consumed the memory.
  void Forget();

  // A buffer over bytes [offset, offset + size), owned by this object; offset is a multiple of kAlignment. Null after
  // Fail(). Guarded by the core's execution mutex.
  pjrt::Buffer* View(size_t offset, size_t size);

 private:
  struct CachedView {
    size_t offset;
    size_t size;
    pjrt::Buffer* handle;
  };

  void DropViews();

  std::atomic<char*> data_{nullptr};
  void* host_block_ = nullptr;
  std::vector<CachedView> views_;
  size_t next_evicted_ = 0;
};

constexpr size_t kAlignment = 64;

// Blocks whose tensors are gone, kept for outputs of the same size: fresh pages cost more than the arithmetic of an
// elementwise program. Bounded; counted in the memory statistics; given up first when memory runs short.
class StoragePool {
 public:
  static constexpr size_t kMinimum = size_t{1} << 20;

  void SetLimit(size_t bytes) { limit_ = bytes; }
  // Null if there is none of exactly this size.
  Storage* Take(size_t bytes);
  // False if the block does not fit: the caller then destroys it.
  bool Put(Storage* storage);
  void Clear();
  size_t bytes() const { return bytes_.load(std::memory_order_relaxed); }

 private:
  std::mutex mutex_;
  std::vector<Storage*> blocks_;  // least recently returned first
  std::atomic<size_t> bytes_{0};
  size_t limit_ = 0;
};

}  // namespace neuroncore
