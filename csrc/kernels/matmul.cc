// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <optional>

#include <ATen/ops/addmm.h>
#include <ATen/ops/baddbmm.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/mm.h>

#include "kernel_call.h"
#include "matmul_f32_amx.h"
#include "matmul_fma.h"
#include "processor.h"

// A contraction in the terms of stablehlo.dot_general, rounded once: see
// torch_neuronx/lowering/families/contractions.py.
namespace neuron {
namespace {

using Dims = std::vector<int64_t>;

Dims free_dims(const at::Tensor& x, const Dims& batch, const Dims& contracting) {
  Dims free;
  for (int64_t d = 0; d < x.dim(); ++d) {
    const bool taken =
        std::count(batch.begin(), batch.end(), d) + std::count(contracting.begin(), contracting.end(), d) > 0;
    if (!taken) free.push_back(d);
  }
  return free;
}

int64_t extent(const at::Tensor& x, const Dims& dims) {
  int64_t count = 1;
  for (int64_t d : dims) count *= x.size(d);
  return count;
}

// `x` as (batch, rows, columns), each a group of its dimensions; a view where strides allow.
at::Tensor as_matrices(const at::Tensor& x, const Dims& batch, const Dims& rows, const Dims& columns) {
  Dims order = batch;
  order.insert(order.end(), rows.begin(), rows.end());
  order.insert(order.end(), columns.begin(), columns.end());
  return x.permute(order).reshape({extent(x, batch), extent(x, rows), extent(x, columns)});
}

// A matrix in either order, or none.
template <typename T>
std::optional<Matrix<T>> in_order(const at::Tensor& x) {
  const auto* data = static_cast<const T*>(x.const_data_ptr());
  if (x.stride(1) == 1) return Matrix<T>{data, x.stride(0), 1};
  if (x.stride(0) == 1) return Matrix<T>{data, 1, x.stride(1)};
  return std::nullopt;
}

// A product of tensors in the terms of our own kernels, or none. `bias` may be null.
template <typename T>
std::optional<MatrixProduct<T>> as_product(const at::Tensor& x, const at::Tensor& y, const void* bias,
                                           const at::Tensor& out) {
  const auto left = in_order<T>(x), right = in_order<T>(y);
  if (!left || !right || std::min({x.size(0), x.size(1), y.size(1)}) == 0) return std::nullopt;
  return MatrixProduct<T>{x.size(0),
                          y.size(1),
                          x.size(1),
                          *left,
                          *right,
                          static_cast<const T*>(bias),
                          static_cast<T*>(out.mutable_data_ptr())};
}

// Whether our own kernel for this processor did it. `bias` may be null.
bool multiply_f32(const at::Tensor& x, const at::Tensor& y, const void* bias, const at::Tensor& out) {
  const auto product = as_product<float>(x, y, bias, out);
  if (!product) return false;
  // Of fewer rows, columns or inner elements than some panels, splitting them takes longer than is won.
  constexpr int64_t kLeastOfParts = 64;
  if (has_amx() && std::min({product->rows, product->columns, product->inner}) >= kLeastOfParts &&
      matmul_f32_amx(*product))
    return true;
  if (has_fast_mkl() || !has_avx2()) return false;
  matmul_fma(*product);
  return true;
}

bool multiply_bfloat16(const at::Tensor& x, const at::Tensor& y, const void* bias, const at::Tensor& out) {
  if (has_fast_bfloat16() || !has_avx2()) return false;
  const auto product = as_product<BFloat16>(x, y, bias, out);
  if (product) matmul_fma(*product);
  return product.has_value();
}

}  // namespace

void matmul(const KernelCall& call) {
  const at::Tensor x = call.input(0), y = call.input(1);
  const Dims x_batch = call.integers("lhs_batch"), y_batch = call.integers("rhs_batch");
  const Dims x_inner = call.integers("lhs_contracting"), y_inner = call.integers("rhs_contracting");
  const at::Tensor left = as_matrices(x, x_batch, free_dims(x, x_batch, x_inner), x_inner);
  const at::Tensor right = as_matrices(y, y_batch, y_inner, free_dims(y, y_batch, y_inner));
  at::Tensor out = call.output(0).view({left.size(0), left.size(1), right.size(2)});
  const bool has_bias = call.num_inputs() > 2;
  if (left.size(0) == 1) {
    at::Tensor matrix = out[0];
    const void* bias = has_bias ? call.input_buffer(2).data : nullptr;
    const auto multiply = x.scalar_type() == at::kFloat ? &multiply_f32 : &multiply_bfloat16;
    if (multiply(left[0], right[0], bias, matrix)) return;
    if (has_bias) {
      at::addmm_out(matrix, call.input(2), left[0], right[0]);
    } else {
      at::mm_out(matrix, left[0], right[0]);
    }
  } else if (has_bias) {
    at::baddbmm_out(out, call.input(2), left, right);
  } else {
    at::bmm_out(out, left, right);
  }
}

}  // namespace neuron
