// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include <nrt/nrt.h>
#include <nrt/nrt_status.h>
#include <neuroncore/neuroncore.h>

namespace neuron {

// The one table of NRT symbols, filled from libnrt.so.1 or libneuroncore.so with dlopen. All NRT
// calls of the extension go through it: `runtime().tensor_allocate(...)`. Members whose name
// starts with `neuroncore_` are null when the library is the vendor's.
struct Runtime;
const Runtime& runtime();           // loads and initialises on first use; raises with the remedy
const Runtime* runtime_or_null();   // the same, null instead of raising (is_available, counts)
bool runtime_initialized();
bool runtime_is_software();

// Raises c10::Error (OutOfMemory for NRT_RESOURCE) for a failed call: "<what>: <status name>: <detail>".
void check_status(NRT_STATUS status, const char* what);
// "NRT_RESOURCE (4): <detail of the core, if any>".
std::string describe_status(NRT_STATUS status);

}  // namespace neuron
