// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pybind11/pybind11.h>

namespace neuron {

// Puts devices, memory and generators into the Python module.
void bind_device(pybind11::module_& module);

}  // namespace neuron
