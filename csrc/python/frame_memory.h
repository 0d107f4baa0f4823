// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pybind11/pybind11.h>

namespace neuron {

// Adds keep_frame_memory and free_frame_memory to the Python module.
void bind_frame_memory(pybind11::module_& module);

}  // namespace neuron
