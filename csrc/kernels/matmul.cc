// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <optional>

#include <ATen/ops/addmm.h>
#include <ATen/ops/baddbmm.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/mm.h>

#include "amx.h"
#include "kernel_call.h"
#include "matmul_f32_amx.h"

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
std::optional<MatrixF32> in_order(const at::Tensor& x) {
  if (x.stride(1) == 1) return MatrixF32{x.const_data_ptr<float>(), x.stride(0), 1};
  if (x.stride(0) == 1) return MatrixF32{x.const_data_ptr<float>(), 1, x.stride(1)};
  return std::nullopt;
}

// Whether it could, see matmul_f32_amx.h. `bias` may be null.
bool multiply_by_amx(const at::Tensor& x, const at::Tensor& y, const float* bias, const at::Tensor& out) {
  // Of fewer rows, columns or inner elements than some panels, splitting them takes longer than is won.
  constexpr int64_t kLeast = 64;
  if (!has_amx() || std::min({x.size(0), x.size(1), y.size(1)}) < kLeast) return false;
  const auto left = in_order(x), right = in_order(y);
  if (!left || !right) return false;
  return matmul_f32_amx({x.size(0), y.size(1), x.size(1), *left, *right, bias, out.mutable_data_ptr<float>()});
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
    if (x.scalar_type() == at::kFloat) {
      const auto* bias = has_bias ? static_cast<const float*>(call.input_buffer(2).data) : nullptr;
      if (multiply_by_amx(left[0], right[0], bias, matrix)) return;
    }
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
