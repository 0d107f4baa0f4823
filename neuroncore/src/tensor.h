// SPDX-License-Identifier: Apache-2.0
//
// Device tensors. A root tensor owns a Buffer; slices share it. A Buffer's memory comes and goes: none before the first
// write, then its own or the result of a program that it adopted.
#pragma once

#include <atomic>
#include <cstdint>

#include "core.h"
#include "lock.h"
#include "storage.h"

namespace neuroncore {

constexpr uint64_t kTensorMagic = 0x74656e736f723031;

struct Buffer {
  uint64_t magic = 0;  // only for Slab
  std::atomic<uint32_t> references{1};
  Lock lock;
  std::atomic<bool> pinned{false};  // nrt_tensor_get_va has handed out the address: the storage stays
  // May be shorter than `size`: the bytes beyond were never written and read as zero. Null: none was ever written.
  Storage* storage = nullptr;
  size_t size = 0;
  Core* core = nullptr;

  void Reference() { references.fetch_add(1, std::memory_order_relaxed); }
  void Release();

  // Copies the content at `offset` to `to`. False after Fail().
  bool Read(size_t offset, size_t bytes, char* to);

  // All of the following return a reference to release, or null after Fail().

  // The storage, with at least `end` bytes that are defined.
  Storage* ForRead(size_t end);
  // The storage, with at least offset + written bytes, of which [offset, offset + written) are about to be overwritten.
  Storage* ForWrite(size_t offset, size_t written);
  // The storage at its full size, never to be replaced again.
  Storage* Pin();
  // The storage there is now; null (without Fail) if there is none.
  Storage* Current();

  // Makes a program's result the content. Consumes the reference. False, with the reference untouched, if pinned.
  bool Adopt(Storage* result);
  // Drops `lost` if it still is the content.
  void Drop(Storage* lost);

 private:
  Storage* Grow(size_t bytes, size_t offset, size_t written);
};

struct Tensor {
  uint64_t magic = 0;
  uint64_t serial = 0;  // never reused: tells a tensor from a later one at the same address
  Buffer* buffer = nullptr;
  size_t offset = 0;
  size_t size = 0;

  bool covers_buffer() const { return offset == 0 && size == buffer->size; }
};

// The live tensor behind a handle, or null after Fail().
Tensor* GetTensor(const char* function, const void* handle);

}  // namespace neuroncore
