// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace neuron::distributed {

// Lets programs on the software core contain collectives: their bytes move through the process groups
// of this process. A program names a group by its ordinal (ProcessGroupNeuron::ordinal), which is the
// same on all ranks. On Trainium the runtime has its own transport, and this does nothing.
void provide_collectives_to_programs();

}  // namespace neuron::distributed
