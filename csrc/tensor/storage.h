// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/StorageImpl.h>

namespace neuron {

// Gives the storage a block of the new size, with as much of its content as fits. Asynchronous.
void resize_storage(c10::StorageImpl& storage, size_t bytes);

}  // namespace neuron
