// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "vectorized.h"

// Operands of attention's two products as at::native::cpublas::brgemm takes them: for float products plain matrices,
// for those of BFloat16 with every two consecutive elements of a contracted column side by side ("VNNI"). Sources are
// (count, size) with a stride between rows; what is beyond them is filled with zeros. Padded sizes are multiples of 16,
// that of BFloat16 products of 32.
namespace neuron {

struct Rows {
  const void* data;
  int64_t stride, count, size;
};

// T: element type of the source, P: of the products.
template <typename T, typename P>
struct Packing {
  // (count, padded_size), times -1 if negative.
  static void queries(const Rows& rows, P* packed, int64_t padded_size, bool negative);
  // The transpose: (padded_size, padded_count).
  static void keys(const Rows& rows, P* packed, int64_t padded_count, int64_t padded_size);
  // (padded_count, padded_size).
  static void values(const Rows& rows, P* packed, int64_t padded_count, int64_t padded_size);
};

// Undoes a packing of results: one row, output = sums * factor.
void scale_row(const float* sums, float factor, float* output, int64_t size);
void scale_row(const float* sums, float factor, BFloat16* output, int64_t size);

}  // namespace neuron
