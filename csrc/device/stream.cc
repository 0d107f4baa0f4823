// SPDX-License-Identifier: Apache-2.0
#include <device/stream.h>

#include <array>
#include <atomic>

#include <device/current_device.h>
#include <device/launch_queue.h>
#include <nrt/runtime.h>

namespace neuron {
namespace {

constexpr size_t kMaxDevices = 128;
std::atomic<c10::StreamId> g_next_stream{1};
thread_local std::array<c10::StreamId, kMaxDevices> t_streams{};

c10::Stream stream_of(c10::DeviceIndex device, c10::StreamId id) {
  return c10::Stream(c10::Stream::UNSAFE, c10::Device(kNeuron, device), id);
}

c10::DeviceIndex index_or_current(c10::DeviceIndex device) { return device < 0 ? current_device() : device; }

}  // namespace

c10::Stream new_stream(c10::DeviceIndex device, int) {
  device = index_or_current(device);
  check_device(device);
  return stream_of(device, g_next_stream++);
}

c10::Stream default_stream(c10::DeviceIndex device) { return stream_of(index_or_current(device), 0); }

c10::Stream current_stream(c10::DeviceIndex device) {
  device = index_or_current(device);
  return stream_of(device, t_streams[static_cast<size_t>(device)]);
}

c10::Stream exchange_stream(c10::Stream stream) {
  const c10::Stream before = current_stream(stream.device_index());
  t_streams[static_cast<size_t>(before.device_index())] = stream.id();
  return before;
}

bool query_stream(const c10::Stream& stream) {
  if (!runtime_initialized()) {
    if (in_bad_fork()) runtime();
    return true;
  }
  LaunchQueue& queue = LaunchQueue::of(index_or_current(stream.device_index()));
  return queue.done(queue.last_enqueued());
}

void synchronize_device(c10::DeviceIndex device) {
  if (!runtime_initialized()) {
    if (in_bad_fork()) runtime();
    return;
  }
  device = index_or_current(device);
  check_device(device);
  LaunchQueue::of(device).synchronize();
}

}  // namespace neuron
