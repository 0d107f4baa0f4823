// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <Python.h>

// Adds the class Graph, which torch_neuronx.dynamo fills with programs and calls, to the module _C.
void register_graph_bindings(PyObject* module);
