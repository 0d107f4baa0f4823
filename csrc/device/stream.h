// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Stream.h>

namespace neuron {

// Streams are names: all of a device feed its one launch queue, in order. So a stream never has to
// wait for another of the same device. Stream 0 is the default.
c10::Stream new_stream(c10::DeviceIndex device, int priority);
c10::Stream default_stream(c10::DeviceIndex device);
// Per thread, as in CUDA.
c10::Stream current_stream(c10::DeviceIndex device);
c10::Stream exchange_stream(c10::Stream stream);

// True when all work given to the device so far is done. Polling wakes the core.
bool query_stream(const c10::Stream& stream);
// Waits, then raises what asynchronous work has reported.
void synchronize_device(c10::DeviceIndex device);

}  // namespace neuron
