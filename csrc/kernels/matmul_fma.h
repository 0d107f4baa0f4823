// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "matrices.h"
#include "vectorized.h"

namespace neuron {

// A product by fused multiply-add in float32, rounded once. Operands are packed into panels, and bfloat16 is widened on
// the way. For processors that multiply bfloat16 slowly, or that MKL does not know. Raises std::bad_alloc. Needs
// `has_avx2`.
void matmul_fma(const MatrixProduct<float>& product);
void matmul_fma(const MatrixProduct<BFloat16>& product);

}  // namespace neuron
