// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <c10/core/Device.h>

#include <nrt/nrt.h>

#include "../device/launch_queue.h"

namespace neuron {

// A device tensor that holds one scalar. The last few thousand distinct scalars of a core are kept:
// most programs meet the same ones again. Called by the thread that drives the core, and valid
// for the launch at hand.
nrt_tensor_t* scalar_tensor(c10::DeviceIndex device, ScalarKind kind, uint64_t bits);

// Bytes of one scalar of that kind.
size_t scalar_bytes(ScalarKind kind);

}  // namespace neuron
