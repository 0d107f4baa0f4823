// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include <neuroncore/neuroncore.h>

// The compiler of the software core. Raises when the runtime is the vendor's, which has none.
namespace neuron {

// StableHLO text to the bytes of a NEFF; raises what the compiler says. Neither uses a core nor
// needs the GIL. metadata: a JSON object, or "".
std::string compile(const std::string& mlir, const std::string& metadata, int optimize_level);
// Identifies everything beside the program that decides what `compile` produces.
std::string compiler_fingerprint();

// Hands kernels that were registered early to the core; runtime() does it at its start.
struct Runtime;
void provide_kernels(const Runtime& nrt);

// Lends a host kernel to the software core, by name. Remembered until the library is loaded; of no
// effect with the vendor's library.
void register_kernel(const std::string& name, neuroncore_kernel_fn function, void* context);
// Names registered so far, sorted.
std::vector<std::string> kernel_names();

}  // namespace neuron
