// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace neuron {

// Sees to it that TORCH_NEURONX_PJRT_PLUGIN names the XLA plugin that the software core runs on:
// what the user set, else one of the installed packages. Raises with the remedy when there is
// none. Takes the GIL; so whoever holds a lock that a GIL holder may wait for must not call it.
void provide_pjrt_plugin();

}  // namespace neuron
