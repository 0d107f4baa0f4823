// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Allocator.h>

namespace neuron {

// Host memory that transfers may read and write while the program goes on: 64-byte aligned, cached,
// and known by its address.
c10::Allocator* pinned_memory_allocator();
bool is_pinned(const void* pointer);

}  // namespace neuron
