// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include <c10/core/CachingDeviceAllocator.h>

#include <device/block.h>
#include <device/current_operator.h>
#include <nrt/nrt.h>

namespace neuron {

// Caching allocator of device memory. A freed block keeps its size and serves the next request of
// that size at once, because one queue runs all work of a core in order.
class DeviceAllocator final : public c10::DeviceAllocator {
 public:
  // On the current device. Raises torch.OutOfMemoryError.
  c10::DataPtr allocate(size_t bytes) override;
  c10::DataPtr allocate_on(c10::DeviceIndex device, size_t bytes);
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* destination, const void* source, size_t bytes) const override;

  bool initialized() override;
  // Waits for the core, then gives all free blocks back to it.
  void emptyCache(c10::MempoolId_t pool = {0, 0}) override;
  // Nothing to do: streams of a device share one queue.
  void recordStream(const c10::DataPtr&, c10::Stream) override {}
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override;
  void resetAccumulatedStats(c10::DeviceIndex device) override;
  void resetPeakStats(c10::DeviceIndex device) override;
  // Free and total bytes of the core; cached blocks count as free.
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) override;
};

DeviceAllocator& device_allocator();

// "  512.00 MiB by aten::mm" lines for the largest tensors alive.
std::string describe_live_blocks(c10::DeviceIndex device, size_t how_many);

}  // namespace neuron
