// SPDX-License-Identifier: Apache-2.0
#include "view_operand.h"

#include <algorithm>

#include <c10/util/SmallVector.h>

#include "../device/block.h"

namespace neuron {
namespace {

constexpr size_t kCopiedBytes = 256;

struct Dimension {
  int64_t stride, size;
};
using Dimensions = c10::SmallVector<Dimension, 8>;

// Dimensions that move through memory, outermost first.
Dimensions moving_dimensions(const at::TensorBase& tensor) {
  Dimensions dims;
  for (int64_t d = 0; d < tensor.dim(); ++d) {
    if (tensor.size(d) > 1 && tensor.stride(d) != 0) dims.push_back({tensor.stride(d), tensor.size(d)});
  }
  std::sort(dims.begin(), dims.end(), [](const Dimension& a, const Dimension& b) { return a.stride > b.stride; });
  return dims;
}

// Elements of the memory if the dimensions cover it without gap or overlap, else -1.
int64_t dense_elements(const Dimensions& dims) {
  int64_t expected = 1;
  for (size_t i = dims.size(); i-- > 0;) {
    if (dims[i].stride != expected) return -1;
    expected *= dims[i].size;
  }
  return expected;
}

}  // namespace

Operand whole_block(const at::TensorBase& tensor, size_t bytes) {
  Operand operand;
  operand.block = block_of(tensor);
  operand.bytes = bytes;
  operand.whole = true;
  return operand;
}

ViewOperand view_operand(const at::TensorBase& tensor) {
  const c10::StorageImpl& storage = *tensor.storage().unsafeGetStorageImpl();
  const size_t item = tensor.itemsize();
  const int64_t offset = tensor.storage_offset();
  ViewOperand view;
  view.memory.block = block_of(storage);

  int64_t start = offset;
  if (tensor.is_contiguous() || tensor.is_non_overlapping_and_dense()) {
    view.window = tensor.numel();
  } else {
    const Dimensions dims = moving_dimensions(tensor);
    view.window = dense_elements(dims);
    if (view.window < 0) {
      // Begin at the start of the parent's row, where that is aligned, and end with a row.
      const int64_t row = dims[0].stride;
      start = offset / row * row;
      if (start * item % kOperandAlignment != 0) start = 0;
      int64_t last = offset - start;
      for (const Dimension& d : dims) last += (d.size - 1) * d.stride;
      const int64_t available = static_cast<int64_t>(storage.nbytes() / item) - start;
      view.window = std::min((last / row + 1) * row, available);
      view.has_delta = true;
    }
  }
  // A few bytes are copied to an aligned place sooner than they are sliced in a program of their own.
  if (!view.has_delta && start * item % kOperandAlignment != 0 && view.window * item > kCopiedBytes) {
    const int64_t step = std::max<int64_t>(1, static_cast<int64_t>(kOperandAlignment / item));
    const int64_t aligned = start * item / kOperandAlignment * kOperandAlignment / item;
    const int64_t available = static_cast<int64_t>(storage.nbytes() / item) - aligned;
    view.window = std::min(view.window + step, available);
    view.has_delta = true;
    start = aligned;
  }
  view.delta = offset - start;
  view.memory.offset = start * item;
  view.memory.bytes = view.window * item;
  view.memory.whole = start == 0 && view.memory.bytes >= storage.nbytes();
  return view;
}

}  // namespace neuron
