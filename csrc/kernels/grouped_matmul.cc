// SPDX-License-Identifier: Apache-2.0
#include <ATen/ops/mm.h>

#include "kernel_call.h"

// Groups of rows, of columns or of the inner dimension, each with a matrix of its own: see
// torch_neuronx/lowering/families/grouped_matmul.py.
namespace neuron {

void grouped_matmul(const KernelCall& call) {
  const std::string transposed = call.text("transposed");
  at::Tensor x = call.input(0), y = call.input(1), out = call.output(0);
  if (transposed.at(0) == '1') x = x.transpose(-2, -1);
  if (transposed.at(1) == '1') y = y.transpose(-2, -1);
  const neuroncore_buffer_t& buffer = call.input_buffer(2);
  TORCH_CHECK(buffer.element_type == NEURONCORE_TYPE_S32, "expected the ends of the groups as s32");
  const auto* ends = static_cast<const int32_t*>(buffer.data);
  // The dimension that is divided: rows of x, columns of y, or the inner one of both.
  const bool of_rows = x.dim() == 2 && y.dim() == 3;
  const bool of_columns = x.dim() == 3;
  const int64_t extent = of_rows ? x.size(0) : y.size(of_columns ? 1 : 0);
  int64_t begin = 0;
  for (int64_t group = 0; group < buffer.dims[0]; ++group) {
    const int64_t end = ends[group];
    TORCH_CHECK(begin <= end && end <= extent, "expected ends of groups that grow up to ", extent, ", got ", end,
                " after ", begin);
    if (of_rows) {
      at::Tensor part = out.slice(0, begin, end);
      at::mm_out(part, x.slice(0, begin, end), y[group]);
    } else if (of_columns) {
      at::Tensor part = out.slice(1, begin, end);
      at::mm_out(part, x[group], y.slice(1, begin, end));
    } else {
      at::Tensor part = out[group];
      at::mm_out(part, x.slice(1, begin, end), y.slice(0, begin, end));
    }
    begin = end;
  }
  if (of_rows || of_columns) out.slice(of_rows ? 0 : 1, begin).zero_();
}

}  // namespace neuron
