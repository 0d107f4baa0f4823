// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <Python.h>

// Adds the functions that torch_neuronx.eager and torch_neuronx.compiler call to the module _C.
void register_eager_bindings(PyObject* module);
