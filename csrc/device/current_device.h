// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Device.h>

namespace neuron {

constexpr c10::DeviceType kNeuron = c10::DeviceType::PrivateUse1;

// The device of this thread. It begins as the rank of the process on its machine (LOCAL_RANK), if
// a launcher set one and such a device exists, else as 0.
c10::DeviceIndex current_device();
// Raises when there is no such device.
void set_current_device(c10::DeviceIndex device);
// The same without the check, for destructors.
void set_current_device_unchecked(c10::DeviceIndex device) noexcept;
c10::DeviceIndex exchange_device(c10::DeviceIndex device);

// Raises when there is no such device, saying which exist.
void check_device(c10::DeviceIndex device);

}  // namespace neuron
