// SPDX-License-Identifier: Apache-2.0
#include <device/current_device.h>

#include <c10/util/Exception.h>

#include <nrt/environment.h>
#include <nrt/runtime.h>

namespace neuron {
namespace {

constexpr c10::DeviceIndex kUnset = -1;
thread_local c10::DeviceIndex t_device = kUnset;

c10::DeviceIndex initial_device() {
  static const c10::DeviceIndex device = [] {
    const int rank = environment::local_rank();
    return static_cast<c10::DeviceIndex>(rank >= 0 && rank < visible_core_count() ? rank : 0);
  }();
  return device;
}

}  // namespace

c10::DeviceIndex current_device() {
  if (C10_UNLIKELY(t_device == kUnset)) t_device = initial_device();
  return t_device;
}

void check_device(c10::DeviceIndex device) {
  const int count = visible_core_count();
  TORCH_CHECK(count > 0, "No neuron device is available. ", unavailable_reason());
  TORCH_CHECK(device >= 0 && device < count, "There is no device neuron:", static_cast<int>(device),
              ": this process has ", count, " (neuron:0 to neuron:", count - 1, ").");
}

void set_current_device(c10::DeviceIndex device) {
  if (device == t_device) return;
  check_device(device);
  t_device = device;
}

void set_current_device_unchecked(c10::DeviceIndex device) noexcept { t_device = device; }

c10::DeviceIndex exchange_device(c10::DeviceIndex device) {
  const c10::DeviceIndex before = current_device();
  if (device >= 0) set_current_device(device);
  return before;
}

}  // namespace neuron
