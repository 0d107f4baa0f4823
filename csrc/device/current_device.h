// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Device.h>

namespace neuron {

constexpr c10::DeviceType kNeuron = c10::DeviceType::PrivateUse1;

// The device of this thread. It begins as the rank of the process on its machine (LOCAL_RANK), if a
// launcher set one, else as 0. A launcher that gives each process one core (NEURON_RT_VISIBLE_CORES)
// makes that core device 0 of its process.
c10::DeviceIndex current_device();
// Raises when there is no such device, or when it is another process's.
void set_current_device(c10::DeviceIndex device);
// The same without the check, for destructors.
void set_current_device_unchecked(c10::DeviceIndex device) noexcept;
c10::DeviceIndex exchange_device(c10::DeviceIndex device);

// Raises when there is no such device, saying which exist.
void check_device(c10::DeviceIndex device);
// Raises when the device is another process's: it may be asked about, but not used. Cheap.
void check_own_device(c10::DeviceIndex device);

}  // namespace neuron
