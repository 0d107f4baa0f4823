// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pybind11/pybind11.h>

namespace neuron {

// Puts the backend of torch.distributed into the Python module.
void bind_distributed(pybind11::module_& module);

}  // namespace neuron
