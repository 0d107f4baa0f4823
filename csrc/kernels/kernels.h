// SPDX-License-Identifier: Apache-2.0
#pragma once

// Host kernels that the extension lends to the software core: ATen's, where they beat XLA's CPU code.
// The lowering marks what they can take over (`Builder.composite`); on the vendor's runtime, and
// where the processor lacks what makes a kernel worth it, the marked decomposition is compiled.
namespace neuron {

// Registers every kernel that pays on this processor. To be called before the first program is built.
void register_host_kernels();

// Ends the OpenMP threads that kernels have started for the calling thread, which is about to sleep. While they exist,
// libgomp counts more threads than cores, and lets nobody's wait for work by spinning: a CPU operator of the caller's
// would have to wake its threads every time.
void release_host_threads();

}  // namespace neuron
