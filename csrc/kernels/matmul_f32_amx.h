// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "matrices.h"

namespace neuron {

// The product of float32 out of products of bfloat16 (see float_parts.h), which AMX makes more than ten times as fast.
// At least as exact as one of float32 numbers. False if these numbers are not for it: infinite, NaN, or so large or
// small that a part or a product would be lost; or if memory is short. `out` then has any values. Needs `has_amx`.
bool matmul_f32_amx(const MatrixProduct<float>& product);

}  // namespace neuron
