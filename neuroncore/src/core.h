// SPDX-License-Identifier: Apache-2.0
//
// The cores of this process and the life of the runtime (nrt_init ... nrt_close).
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <vector>

#include "errors.h"
#include "plugin.h"
#include "storage.h"

namespace neuroncore {

// A statistic that several threads may raise.
class Counter {
 public:
  void Add(uint64_t amount) { value_.fetch_add(amount, std::memory_order_relaxed); }
  // Cheaper, where the core's execution mutex is held by every writer.
  void AddExclusive(uint64_t amount) { value_.store(get() + amount, std::memory_order_relaxed); }
  uint64_t get() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> value_{0};
};

struct Core {
  int index = 0;  // among the visible cores
  int physical_index = 0;
  Plugin* plugin = nullptr;
  uint64_t capacity = 0;
  std::atomic<uint64_t> bytes_allocated{0};
  std::atomic<uint64_t> bytes_allocated_peak{0};
  std::atomic<int64_t> tensors{0};
  std::atomic<bool> closed{false};

  // A core runs one program at a time.
  std::mutex execution;
  std::vector<pjrt::Buffer*> evicted_views;  // guarded by `execution`

  StoragePool pool;
  struct {
    Counter executions, bytes_adopted, bytes_copied, donations, scratch_reuses, views_created, bytes_read,
        bytes_written, execution_ns;
  } counters;

  // Accounts for `bytes` of device memory; false if the core has not that much. Never calls Fail().
  bool Reserve(uint64_t bytes);
  void Unreserve(uint64_t bytes) { bytes_allocated.fetch_sub(bytes, std::memory_order_relaxed); }
};

// NRT_SUCCESS between nrt_init and nrt_close, otherwise Fail()s.
NRT_STATUS CheckRunning(const char* function);

// Core number `vnc` of the visible ones, or null after Fail(). Only while running.
Core* GetCore(const char* function, int vnc);

}  // namespace neuroncore
