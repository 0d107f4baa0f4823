// SPDX-License-Identifier: Apache-2.0
#include "scratch.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

#include "rounding.h"

namespace neuron {
namespace {

constexpr int64_t kPage = 4096, kHugePage = 2 << 20;
constexpr int64_t kMostKept = 64 << 20;  // bytes

Scratch::Block allocate(int64_t bytes) {
  const int64_t page = bytes >= kHugePage ? kHugePage : kPage;
  bytes = round_up(bytes, page);
  auto* data = static_cast<char*>(std::aligned_alloc(static_cast<size_t>(page), static_cast<size_t>(bytes)));
  if (data == nullptr) throw std::bad_alloc();
  // Where the system has no huge pages to give, it stays as it is.
  if (page == kHugePage) madvise(data, static_cast<size_t>(bytes), MADV_HUGEPAGE);
  return {std::unique_ptr<char, Scratch::Free>(data), bytes};
}

class Pool {
 public:
  // The smallest block that suffices, unless most of it would lie idle.
  Scratch::Block take(int64_t bytes) {
    const std::lock_guard lock(mutex_);
    auto best = blocks_.end();
    for (auto block = blocks_.begin(); block != blocks_.end(); ++block) {
      if (block->bytes >= bytes && block->bytes / 2 <= bytes + kHugePage &&
          (best == blocks_.end() || block->bytes < best->bytes))
        best = block;
    }
    if (best == blocks_.end()) return {};
    Scratch::Block found = std::move(*best);
    blocks_.erase(best);
    kept_ -= found.bytes;
    return found;
  }

  void give(Scratch::Block block) {
    const std::lock_guard lock(mutex_);
    kept_ += block.bytes;
    blocks_.push_back(std::move(block));
    // The oldest goes first: it fitted nothing since.
    while (kept_ > kMostKept) {
      kept_ -= blocks_.front().bytes;
      blocks_.erase(blocks_.begin());
    }
  }

 private:
  std::mutex mutex_;
  std::vector<Scratch::Block> blocks_;
  int64_t kept_ = 0;
};

// Threads may still run kernels when the process ends: never destroyed.
Pool& pool() {
  static Pool& pool = *new Pool;
  return pool;
}

}  // namespace

void Scratch::Free::operator()(char* data) const { std::free(data); }

Scratch::Scratch(int64_t bytes) : block_(pool().take(bytes)) {
  if (block_.data == nullptr) block_ = allocate(bytes);
}

Scratch::~Scratch() { pool().give(std::move(block_)); }

}  // namespace neuron
