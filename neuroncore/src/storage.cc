// SPDX-License-Identifier: Apache-2.0
#include "storage.h"

#include <sys/mman.h>

#include <cstdint>
#include <cstdlib>
#include <new>

#include "core.h"
#include "errors.h"
#include "slab.h"

namespace neuroncore {
namespace {

constexpr size_t kMaximumViews = 32;
constexpr size_t kLargePage = size_t{2} << 20;

Slab<Storage>& Slabs() {
  static auto* slab = new Slab<Storage>;
  return *slab;
}

// New memory is filled and read faster by large pages: fewer addresses are looked up, and the processor fetches ahead
// beyond 4 KiB. To be asked for before the first touch. A system without them does nothing.
void AdviseLargePages(void* block, size_t bytes) {
  constexpr uintptr_t kPage = 4096;
  const uintptr_t begin = reinterpret_cast<uintptr_t>(block) / kPage * kPage;
  const uintptr_t end = (reinterpret_cast<uintptr_t>(block) + bytes + kPage - 1) / kPage * kPage;
  madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
}

}  // namespace

Storage* Storage::Allocate(Core* core, size_t bytes) {
  if (Storage* recycled = core->pool.Take(bytes)) return recycled;
  const Plugin& plugin = *core->plugin;
  if (plugin.CanAllocate()) {
    pjrt::Buffer* handle = plugin.Allocate(bytes);
    if (handle == nullptr) return nullptr;
    Storage* storage = Adopt(core, handle, bytes);
    if (bytes >= kLargePage && storage->data() != nullptr) AdviseLargePages(storage->data(), bytes);
    return storage;
  }
  void* block = std::aligned_alloc(kAlignment, (bytes / kAlignment + 1) * kAlignment);
  if (block == nullptr) {
    Fail(NRT_RESOURCE, "cannot allocate %zu bytes of host memory", bytes);
    return nullptr;
  }
  if (bytes >= kLargePage) AdviseLargePages(block, bytes);
  pjrt::Buffer* handle = plugin.View(block, bytes);
  if (handle == nullptr) {
    std::free(block);
    return nullptr;
  }
  Storage* storage = Adopt(core, handle, bytes);
  storage->host_block_ = block;
  storage->data_ = static_cast<char*>(block);
  return storage;
}

Storage* Storage::Adopt(Core* core, pjrt::Buffer* handle, size_t bytes) {
  Storage* storage = Slabs().New();
  storage->core = core;
  storage->handle = handle;
  storage->bytes = bytes;
  return storage;
}

void Storage::Release() {
  if (references.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  if (donatable() && core->pool.Put(this)) return;
  Destroy();
}

void Storage::Destroy() {
  Forget();
  std::free(host_block_);
  Slabs().Free(this);
}

char* Storage::data() {
  char* pointer = data_.load(std::memory_order_relaxed);
  if (pointer == nullptr && handle != nullptr) {
    pointer = static_cast<char*>(core->plugin->Pointer(handle));
    data_.store(pointer, std::memory_order_relaxed);
  }
  return pointer;
}

void Storage::ReplaceHandle(pjrt::Buffer* returned) {
  core->plugin->Destroy(handle);
  handle = returned;
  // PJRT returns donated memory in place, but does not promise it.
  char* now = static_cast<char*>(core->plugin->Pointer(returned));
  if (now == data_.load(std::memory_order_relaxed)) return;
  data_ = now;
  DropViews();
}

void Storage::Forget() {
  DropViews();
  if (handle != nullptr) core->plugin->Destroy(handle);
  handle = nullptr;
  data_ = nullptr;
}

pjrt::Buffer* Storage::View(size_t offset, size_t size) {
  for (const CachedView& view : views_) {
    if (view.offset == offset && view.size == size) return view.handle;
  }
  char* base = data();
  pjrt::Buffer* created = base == nullptr ? nullptr : core->plugin->View(base + offset, size);
  if (created == nullptr) return nullptr;
  core->counters.views_created.Add(1);
  if (views_.size() < kMaximumViews) {
    views_.push_back({offset, size, created});
    return created;
  }
  // Round robin. An execution with more views of one block than this would evict its own operands, so such an
  // execution keeps what it evicts until it has ended.
  CachedView& evicted = views_[next_evicted_++ % kMaximumViews];
  core->evicted_views.push_back(evicted.handle);
  evicted = {offset, size, created};
  return created;
}

void Storage::DropViews() {
  for (const CachedView& view : views_) core->plugin->Destroy(view.handle);
  views_.clear();
}

Storage* StoragePool::Take(size_t bytes) {
  if (bytes < kMinimum || bytes_.load(std::memory_order_relaxed) < bytes) return nullptr;
  std::lock_guard guard(mutex_);
  for (size_t i = blocks_.size(); i-- > 0;) {
    Storage* block = blocks_[i];
    if (block->bytes != bytes) continue;
    blocks_.erase(blocks_.begin() + static_cast<ptrdiff_t>(i));
    bytes_ -= bytes;
    block->references = 1;
    return block;
  }
  return nullptr;
}

bool StoragePool::Put(Storage* storage) {
  if (storage->bytes < kMinimum || storage->bytes > limit_) return false;
  std::vector<Storage*> displaced;
  {
    std::lock_guard guard(mutex_);
    size_t count = 0;
    size_t total = bytes_ + storage->bytes;
    while (total > limit_) {
      total -= blocks_[count]->bytes;
      displaced.push_back(blocks_[count++]);
    }
    blocks_.erase(blocks_.begin(), blocks_.begin() + static_cast<ptrdiff_t>(count));
    blocks_.push_back(storage);
    bytes_ = total;
  }
  for (Storage* block : displaced) block->Destroy();
  return true;
}

void StoragePool::Clear() {
  std::vector<Storage*> blocks;
  {
    std::lock_guard guard(mutex_);
    blocks.swap(blocks_);
    bytes_ = 0;
  }
  for (Storage* block : blocks) block->Destroy();
}

}  // namespace neuroncore
