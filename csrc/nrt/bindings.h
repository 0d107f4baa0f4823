// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pybind11/pybind11.h>

namespace neuron {

// Puts the runtime and the software core's compiler into the Python module.
void bind_runtime(pybind11::module_& module);

}  // namespace neuron
