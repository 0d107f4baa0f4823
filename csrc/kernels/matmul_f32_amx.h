// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace neuron {

// A matrix of float32 in either order: one of the strides is 1.
struct MatrixF32 {
  const float* data;
  int64_t row_stride, column_stride;
};

// out (rows, columns) = x (rows, inner) @ y (inner, columns) + bias. `out` lies row by row. No extent is 0.
struct ProductF32 {
  int64_t rows, columns, inner;
  MatrixF32 x, y;
  const float* bias;  // null: none
  float* out;
};

// The product of float32 out of products of bfloat16 (see float_parts.h), which AMX makes more than ten times as fast.
// At least as exact as one of float32 numbers. False if these numbers are not for it: infinite, NaN, or so large or
// small that a part or a product would be lost; or if memory is short. `out` then has any values. Needs `has_amx`.
bool matmul_f32_amx(const ProductF32& product);

}  // namespace neuron
