// SPDX-License-Identifier: Apache-2.0
//
// Host kernels: C functions that programs reach as XLA FFI custom calls.
#pragma once

#include <neuroncore/neuroncore.h>

#include <string>
#include <string_view>

namespace neuroncore {

class Plugin;

// Registers every kernel known so far with the plugin. False after Fail().
bool RegisterPendingKernels(const Plugin& plugin);

// The place of a kernel that was registered from outside, or -1.
ptrdiff_t FindKernel(std::string_view name);
// Calls the kernel at that place as a program's custom call would.
NRT_STATUS CallKernel(size_t index, const neuroncore_kernel_call_t& call);

// The value of `key` in a config such as "limit=10;wrap=1"; empty if absent.
std::string_view ConfigValue(std::string_view config, std::string_view key);

// A kernel that returns this value makes nrt_execute return NRT_EXEC_OOB.
constexpr int kKernelOutOfBounds = NRT_EXEC_OOB;

// Built in.
int CheckIndex(void* context, const neuroncore_kernel_call_t* call, char* error, size_t error_size);
int AllReduceKernel(void* context, const neuroncore_kernel_call_t* call, char* error, size_t error_size);
int AllGatherKernel(void* context, const neuroncore_kernel_call_t* call, char* error, size_t error_size);
int ReduceScatterKernel(void* context, const neuroncore_kernel_call_t* call, char* error, size_t error_size);
int AllToAllKernel(void* context, const neuroncore_kernel_call_t* call, char* error, size_t error_size);
int BroadcastKernel(void* context, const neuroncore_kernel_call_t* call, char* error, size_t error_size);

}  // namespace neuroncore
