// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

// Matrices as the kernels of products read them.
namespace neuron {

// Lines of a matrix, its rows or its columns: elements one after the other and lines `stride` apart; or lines side by
// side and elements `stride` apart.
template <typename T>
struct Lines {
  const T* data;
  int64_t stride;
  bool whole;
};

// A matrix in either order: one of the strides is 1.
template <typename T>
struct Matrix {
  const T* data;
  int64_t row_stride, column_stride;

  Lines<T> rows_from(int64_t row, int64_t column = 0) const {
    const bool whole = column_stride == 1;
    return {at(row, column), whole ? row_stride : column_stride, whole};
  }
  Lines<T> columns_from(int64_t row, int64_t column) const {
    const bool whole = row_stride == 1;
    return {at(row, column), whole ? column_stride : row_stride, whole};
  }

 private:
  const T* at(int64_t row, int64_t column) const { return data + row * row_stride + column * column_stride; }
};

// out (rows, columns) = x (rows, inner) @ y (inner, columns) + bias. `out` lies row by row. No extent is 0.
template <typename T>
struct MatrixProduct {
  int64_t rows, columns, inner;
  Matrix<T> x, y;
  const T* bias;  // null: none
  T* out;
};

struct Range {
  int64_t begin, end;
  int64_t size() const { return end - begin; }
};
inline Range share_of(Range range, int64_t index, int64_t count) {
  return {range.begin + range.size() * index / count, range.begin + range.size() * (index + 1) / count};
}

}  // namespace neuron
