// SPDX-License-Identifier: Apache-2.0
//
// A four-byte mutex: one atomic exchange when free, a futex wait when not. Small enough to sit in every buffer.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>

namespace neuroncore {

class Lock {
 public:
  void lock() {
    uint32_t seen = kFree;
    if (state_.compare_exchange_strong(seen, kHeld, std::memory_order_acquire)) return;
    while (state_.exchange(kContended, std::memory_order_acquire) != kFree) state_.wait(kContended);
  }

  void unlock() {
    if (state_.exchange(kFree, std::memory_order_release) == kContended) state_.notify_one();
  }

 private:
  enum : uint32_t { kFree, kHeld, kContended };
  std::atomic<uint32_t> state_{kFree};
};

using Locked = std::lock_guard<Lock>;

}  // namespace neuroncore
