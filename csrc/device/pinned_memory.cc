// SPDX-License-Identifier: Apache-2.0
#include <device/pinned_memory.h>

#include <cstdlib>
#include <map>
#include <mutex>
#include <unordered_map>
#include <vector>

#include <ATen/core/CachingHostAllocator.h>

#include <device/current_device.h>
#include <device/size_class.h>

namespace neuron {
namespace {

constexpr size_t kAlignment = 64;

void free_pinned(void* pointer);

class PinnedMemoryAllocator final : public at::HostAllocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    const c10::Device cpu(c10::DeviceType::CPU);
    if (bytes == 0) return {nullptr, nullptr, &free_pinned, cpu};
    const size_t rounded = size_class::rounded(bytes);
    std::lock_guard<std::mutex> lock(mutex_);
    void* pointer = nullptr;
    if (auto& cached = free_[rounded]; !cached.empty()) {
      pointer = cached.back();
      cached.pop_back();
    } else {
      pointer = std::aligned_alloc(kAlignment, rounded);
      TORCH_CHECK(pointer != nullptr, "pin_memory: the host has no ", rounded, " bytes left.");
      stats_.allocations.increase(1);
      stats_.allocated_bytes.increase(rounded);
    }
    live_.emplace(pointer, rounded);
    stats_.active_requests.increase(1);
    stats_.active_bytes.increase(rounded);
    return {pointer, pointer, &free_pinned, cpu};
  }

  void give_back(void* pointer) {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto entry = live_.find(pointer);
    const size_t rounded = entry->second;
    live_.erase(entry);
    free_[rounded].push_back(pointer);
    stats_.active_requests.decrease(1);
    stats_.active_bytes.decrease(rounded);
  }

  bool contains(const void* pointer) {
    std::lock_guard<std::mutex> lock(mutex_);
    auto after = live_.upper_bound(const_cast<void*>(pointer));
    if (after == live_.begin()) return false;
    --after;
    return static_cast<const char*>(pointer) < static_cast<const char*>(after->first) + after->second;
  }

  c10::DeleterFnPtr raw_deleter() const override { return &free_pinned; }
  void copy_data(void* destination, const void* source, size_t bytes) const override {
    default_copy_data(destination, source, bytes);
  }

  // Transfers hold the storage until they are done, so there is nothing to record.
  bool record_event(void*, void*, c10::Stream) override { return true; }

  void empty_cache() override {
    std::lock_guard<std::mutex> lock(mutex_);
    for (auto& [bytes, pointers] : free_) {
      for (void* pointer : pointers) {
        std::free(pointer);
        stats_.allocations.decrease(1);
        stats_.allocated_bytes.decrease(bytes);
      }
    }
    free_.clear();
  }

  at::HostStats get_stats() override {
    std::lock_guard<std::mutex> lock(mutex_);
    return stats_;
  }
  void reset_accumulated_stats() override {
    std::lock_guard<std::mutex> lock(mutex_);
    for (auto* stat : {&stats_.active_requests, &stats_.active_bytes, &stats_.allocations, &stats_.allocated_bytes})
      stat->reset_accumulated();
  }
  void reset_peak_stats() override {
    std::lock_guard<std::mutex> lock(mutex_);
    for (auto* stat : {&stats_.active_requests, &stats_.active_bytes, &stats_.allocations, &stats_.allocated_bytes})
      stat->reset_peak();
  }

 private:
  std::mutex mutex_;
  std::map<void*, size_t> live_;
  std::unordered_map<size_t, std::vector<void*>> free_;
  at::HostStats stats_;
};

PinnedMemoryAllocator& allocator() {
  static auto* leaked = new PinnedMemoryAllocator;
  return *leaked;
}

void free_pinned(void* pointer) {
  if (pointer != nullptr) allocator().give_back(pointer);
}

[[maybe_unused]] const bool g_registered = [] {
  at::setHostAllocator(kNeuron, &allocator());
  return true;
}();

}  // namespace

c10::Allocator* pinned_memory_allocator() { return &allocator(); }
bool is_pinned(const void* pointer) { return pointer != nullptr && allocator().contains(pointer); }

}  // namespace neuron
