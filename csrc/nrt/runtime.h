// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include <c10/core/Device.h>

#include <neuroncore/neuroncore.h>
#include <nrt/nrt.h>
#include <nrt/nrt_status.h>
#include <nrt/nrt_version.h>

namespace neuron {

// Functions that every NRT library has, named without their prefix `nrt_`.
#define NEURON_NRT_FUNCTIONS(_) \
  _(init)                       \
  _(close)                      \
  _(get_version)                \
  _(get_instance_info)          \
  _(get_visible_vnc_count)      \
  _(get_vnc_memory_stats)       \
  _(tensor_allocate)            \
  _(tensor_allocate_slice)      \
  _(tensor_free)                \
  _(tensor_read)                \
  _(tensor_write)               \
  _(tensor_copy)                \
  _(tensor_get_size)            \
  _(tensor_get_va)              \
  _(allocate_tensor_set)        \
  _(destroy_tensor_set)         \
  _(add_tensor_to_tensor_set)   \
  _(load)                       \
  _(load_collectives)           \
  _(unload)                     \
  _(execute)                    \
  _(get_model_tensor_info)      \
  _(free_model_tensor_info)     \
  _(barrier)

// Functions of the software core only.
#define NEURON_CORE_FUNCTIONS(_) \
  _(neuroncore_last_error)       \
  _(neuroncore_compile)          \
  _(neuroncore_free)             \
  _(neuroncore_fingerprint)      \
  _(neuroncore_plugin_path)      \
  _(neuroncore_description)      \
  _(neuroncore_register_kernel)  \
  _(neuroncore_has_kernel)       \
  _(neuroncore_set_collectives)  \
  _(neuroncore_borrow)           \
  _(neuroncore_give_back)        \
  _(neuroncore_fill_tensor_set)  \
  _(neuroncore_get_statistics)   \
  _(neuroncore_execution_time_ns)

// The one table of NRT symbols, filled from libnrt.so.1 or libneuroncore.so with dlopen. All NRT
// calls of the extension go through it: `runtime().tensor_allocate(...)`. Members whose name
// starts with `neuroncore_` are null when the library is the vendor's.
struct Runtime {
#define NEURON_MEMBER(name) decltype(&::nrt_##name) name = nullptr;
  NEURON_NRT_FUNCTIONS(NEURON_MEMBER)
#undef NEURON_MEMBER
#define NEURON_MEMBER(name) decltype(&::name) name = nullptr;
  NEURON_CORE_FUNCTIONS(NEURON_MEMBER)
#undef NEURON_MEMBER
};

// The table, loaded but not initialised: to compile, to count cores, to ask for versions.
const Runtime& loaded_runtime();
// Loads and initialises on first use; raises with the reason and the remedy. Raises in a forked
// child of a process that had initialised it.
const Runtime& runtime();
// The same, null instead of raising.
const Runtime* runtime_or_null();
bool runtime_initialized();
// Which library was chosen (loads it, if need be).
bool runtime_is_software();
// Which library and which version, in a line for people.
std::string runtime_description();
// "trn2", "trn3" ...: the family that the runtime reports.
std::string platform_target();

// Cores that this process may use; 0 when there is no usable runtime. Initialises nothing, so that
// a process may count its devices and fork afterwards.
int visible_core_count() noexcept;
// Why visible_core_count() is 0, and what to do; empty when it is not.
std::string unavailable_reason();
// The index that NRT knows this device by.
int core_of(c10::DeviceIndex device);

// True in a forked child of a process that had initialised the runtime: nothing can work there.
bool in_bad_fork();

// Raises c10::Error (OutOfMemory for NRT_RESOURCE) for a failed call: "<what>: <status name>: <detail>".
void check_status(NRT_STATUS status, const char* what);
// The same for a description that was made earlier, perhaps in another thread.
void raise_status(NRT_STATUS status, const char* what, const std::string& description);
// "NRT_RESOURCE (4): <detail of the core, else what the status means>". Right after the failing
// call, in the same thread.
std::string describe_status(NRT_STATUS status);

}  // namespace neuron
