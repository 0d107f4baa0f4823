// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include <c10/core/Device.h>
#include <c10/core/Storage.h>

#include <nrt/nrt.h>

// Bytes between the host and blocks of a device, in the order of its launch queue.
namespace neuron {

// Reads now: waits for earlier work.
void read_block(c10::DeviceIndex device, nrt_tensor_t* block, size_t offset, void* destination, size_t bytes);
// Reads later; `holder` owns the destination.
void read_block_later(c10::DeviceIndex device, nrt_tensor_t* block, size_t offset, c10::Storage holder,
                      void* destination, size_t bytes);
// Writes; `source` may be changed as soon as this returns. Small writes do not wait.
void write_block(c10::DeviceIndex device, nrt_tensor_t* block, size_t offset, const void* source, size_t bytes);
// Writes later; `holder` owns the source, which must not change before.
void write_block_later(c10::DeviceIndex device, nrt_tensor_t* block, size_t offset, c10::Storage holder,
                       const void* source, size_t bytes);
// Copies within the device, later.
void copy_block(c10::DeviceIndex device, nrt_tensor_t* destination, size_t destination_offset, nrt_tensor_t* source,
                size_t source_offset, size_t bytes);

}  // namespace neuron
