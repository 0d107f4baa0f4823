// SPDX-License-Identifier: Apache-2.0
#include <device/current_device.h>

#include <c10/util/Exception.h>

#include <nrt/environment.h>
#include <nrt/runtime.h>

namespace neuron {
namespace {

constexpr c10::DeviceIndex kUnset = -1;
thread_local c10::DeviceIndex t_device = kUnset;

// Under a launcher, without cores assigned by the user, a process has the core of its rank, and no
// other; -1: all that are visible. Read before the runtime can set the variable itself.
c10::DeviceIndex own_device() {
  static const c10::DeviceIndex device = [] {
    const int rank = environment::local_rank();
    const bool one_each = rank >= 0 && environment::local_world_size() > 1 && !environment::cores_given();
    return static_cast<c10::DeviceIndex>(one_each ? rank : kUnset);
  }();
  return device;
}

c10::DeviceIndex initial_device() {
  const int rank = environment::local_rank();
  const int count = visible_core_count();
  const bool one_given = count == 1 && environment::cores_given();
  if (rank < 0 || count == 0 || one_given) return 0;
  TORCH_CHECK(rank < count, "Local rank ", rank, " of ", environment::local_world_size(),
              " has no NeuronCore: this process sees ", count, ". Start at most one process for each core (torchrun ",
              "--nproc_per_node=", count, "), or change NEURON_RT_VISIBLE_CORES or TORCH_NEURONX_SOFTWARE_CORES.");
  return static_cast<c10::DeviceIndex>(rank);
}

[[noreturn]] void raise_foreign_device(c10::DeviceIndex device) {
  TORCH_CHECK(false, "neuron:", static_cast<int>(device), " belongs to another process: this one is local rank ",
              static_cast<int>(own_device()), " of ", environment::local_world_size(),
              ", and its device is neuron:", static_cast<int>(own_device()),
              ". Use torch.neuron.current_device(), or \"neuron\" without an index.");
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

void check_own_device(c10::DeviceIndex device) {
  const c10::DeviceIndex own = own_device();
  if (C10_UNLIKELY(own != kUnset && device != own)) raise_foreign_device(device);
}

void set_current_device(c10::DeviceIndex device) {
  if (device == t_device) return;
  check_device(device);
  check_own_device(device);
  t_device = device;
}

void set_current_device_unchecked(c10::DeviceIndex device) noexcept { t_device = device; }

c10::DeviceIndex exchange_device(c10::DeviceIndex device) {
  const c10::DeviceIndex before = current_device();
  if (device >= 0) set_current_device(device);
  return before;
}

}  // namespace neuron
