// SPDX-License-Identifier: Apache-2.0
#include <omp.h>

#include <algorithm>
#include <optional>

#include <ATen/Parallel.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/baddbmm.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/mm.h>

#include "kernel_call.h"
#include "matmul_f32_amx.h"
#include "matmul_fma.h"
#include "processor.h"
#include "rounding.h"
#include "shared_loop.h"

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

using Bias = std::optional<at::Tensor>;

// A product of tensors in the terms of our own kernels, or none.
template <typename T>
std::optional<MatrixProduct<T>> as_product(const at::Tensor& x, const at::Tensor& y, const Bias& bias,
                                           const at::Tensor& out) {
  const auto left = in_order<T>(x), right = in_order<T>(y);
  if (!left || !right || std::min({x.size(0), x.size(1), y.size(1)}) == 0) return std::nullopt;
  return MatrixProduct<T>{x.size(0),
                          y.size(1),
                          x.size(1),
                          *left,
                          *right,
                          bias ? static_cast<const T*>(bias->const_data_ptr()) : nullptr,
                          static_cast<T*>(out.mutable_data_ptr())};
}

void multiply_by_aten(const at::Tensor& x, const at::Tensor& y, const Bias& bias, at::Tensor out) {
  if (bias) {
    at::addmm_out(out, *bias, x, y);
  } else {
    at::mm_out(out, x, y);
  }
}

// What ATen computes on this thread it computes on no other, while this lives.
class OneThread {
 public:
  OneThread() : before_(omp_get_max_threads()) { omp_set_num_threads(1); }
  ~OneThread() { omp_set_num_threads(before_); }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  const int before_;
};

// Columns of a product, a share for each thread of a shared loop: oneDNN's own division has OpenMP's threads woken.
bool multiply_columns(const at::Tensor& x, const at::Tensor& y, const Bias& bias, const at::Tensor& out) {
  // Larger products take so long that waking does not matter, and oneDNN divides them better.
  constexpr int64_t kMostMultiplications = int64_t{1} << 31;
  constexpr int64_t kLeastColumns = 128, kGranularity = 64;
  const int64_t threads = at::get_num_threads(), columns = y.size(1);
  if (threads == 1 || columns < threads * kLeastColumns || x.numel() > kMostMultiplications / columns) return false;
  const int64_t share = round_up(divide_up(columns, threads), kGranularity);
  shared_loop(divide_up(columns, share), 1, [&](int64_t begin, int64_t end) {
    const OneThread here;
    const at::AutoDispatchBelowADInplaceOrView plain;
    const int64_t first = begin * share, width = std::min(end * share, columns) - first;
    const Bias part = bias ? Bias(bias->narrow(0, first, width)) : std::nullopt;
    multiply_by_aten(x, y.narrow(1, first, width), part, out.narrow(1, first, width));
  });
  return true;
}

// Whether there was a better way than ATen's.
bool multiply_f32(const at::Tensor& x, const at::Tensor& y, const Bias& bias, const at::Tensor& out) {
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

bool multiply_bfloat16(const at::Tensor& x, const at::Tensor& y, const Bias& bias, const at::Tensor& out) {
  if (has_fast_bfloat16()) return multiply_columns(x, y, bias, out);
  const auto product = has_avx2() ? as_product<BFloat16>(x, y, bias, out) : std::nullopt;
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
  const Bias bias = call.num_inputs() > 2 ? Bias(call.input(2)) : std::nullopt;
  if (left.size(0) == 1) {
    const auto multiply = x.scalar_type() == at::kFloat ? &multiply_f32 : &multiply_bfloat16;
    if (!multiply(left[0], right[0], bias, out[0])) multiply_by_aten(left[0], right[0], bias, out[0]);
  } else if (bias) {
    at::baddbmm_out(out, *bias, left, right);
  } else {
    at::bmm_out(out, left, right);
  }
}

}  // namespace neuron
