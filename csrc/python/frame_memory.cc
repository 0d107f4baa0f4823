// SPDX-License-Identifier: Apache-2.0
#include "frame_memory.h"

#include <algorithm>
#include <mutex>
#include <vector>

// CPython keeps the frames of Python functions in chunks from its arena allocator, and gives a chunk back when the
// frame that began it returns. At the depth where a chunk ends, every call takes a new one: two system calls and the
// faults of fresh pages. A trace of Dynamo lies hundreds of frames deep and calls some function there ten thousands of
// times, so for as long as it lasts chunks wait here for the next call.
namespace neuron {
namespace {

constexpr size_t kLargestChunk = size_t{64} << 10;  // arenas of objects are larger: they go back as ever
constexpr size_t kMostChunks = 8;

struct Block {
  void* memory;
  size_t bytes;
};

struct FrameMemory {
  std::mutex mutex;  // a thread state may end without the GIL
  PyObjectArenaAllocator below{};
  std::vector<Block> kept;
  bool installed = false;  // called by CPython, or by an allocator that was put over this one
  bool keeps = false;
};

// Leaked: CPython may call after the destructors of this library have run.
FrameMemory& frame_memory() {
  static auto* const memory = new FrameMemory;
  return *memory;
}

void* allocate(void* /*context*/, size_t bytes) {
  FrameMemory& memory = frame_memory();
  {
    const std::lock_guard lock(memory.mutex);
    const auto found = std::find_if(memory.kept.rbegin(), memory.kept.rend(),
                                    [bytes](const Block& block) { return block.bytes == bytes; });
    if (found != memory.kept.rend()) {
      void* const block = found->memory;
      memory.kept.erase(std::next(found).base());
      return block;
    }
  }
  return memory.below.alloc(memory.below.ctx, bytes);
}

void release(void* /*context*/, void* block, size_t bytes) {
  FrameMemory& memory = frame_memory();
  {
    const std::lock_guard lock(memory.mutex);
    if (memory.keeps && bytes <= kLargestChunk && memory.kept.size() < kMostChunks) {
      memory.kept.push_back({block, bytes});
      return;
    }
  }
  memory.below.free(memory.below.ctx, block, bytes);
}

// Whether something has changed. With the GIL held, as everything else that reads or writes the allocator.
bool keep() {
  FrameMemory& memory = frame_memory();
  const std::lock_guard lock(memory.mutex);
  if (memory.keeps) return false;
  memory.keeps = true;
  memory.kept.reserve(kMostChunks);
  if (!memory.installed) {
    memory.installed = true;
    PyObject_GetArenaAllocator(&memory.below);
    PyObjectArenaAllocator ours{nullptr, allocate, release};
    PyObject_SetArenaAllocator(&ours);
  }
  return true;
}

void free_kept() {
  FrameMemory& memory = frame_memory();
  std::vector<Block> kept;
  {
    const std::lock_guard lock(memory.mutex);
    memory.keeps = false;
    kept.swap(memory.kept);
    PyObjectArenaAllocator now;
    PyObject_GetArenaAllocator(&now);
    if (memory.installed && now.alloc == allocate) {
      memory.installed = false;
      PyObject_SetArenaAllocator(&memory.below);
    }
  }
  for (const Block& block : kept) memory.below.free(memory.below.ctx, block.memory, block.bytes);
}

}  // namespace

void bind_frame_memory(pybind11::module_& module) {
  module.def("keep_frame_memory", &keep,
             "Keeps the memory of Python's frames from one call to the next; False: it is kept already.");
  module.def("free_frame_memory", &free_kept, "Ends that.");
}

}  // namespace neuron
