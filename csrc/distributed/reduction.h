// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include <c10/core/ScalarType.h>
#include <c10/util/ArrayRef.h>

#include <distributed/collective.h>

namespace neuron::distributed {

// Raises ValueError when the reduction has no meaning for the dtype, as bitwise ones for floats.
void check_reduction(Reduction reduction, c10::ScalarType dtype);

// out[i] = sources[0][i] op sources[1][i] op ..., in this order, so that every rank that computes it
// gets the same bits. Types narrower than float32 accumulate in float32 and round once. `out` may be
// one of the sources.
void reduce(Reduction reduction, c10::ScalarType dtype, c10::ArrayRef<const void*> sources, void* out, size_t count);

}  // namespace neuron::distributed
