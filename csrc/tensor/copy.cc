// SPDX-License-Identifier: Apache-2.0
#include <tensor/copy.h>

#include <ATen/EmptyTensor.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/ops/_neg_view.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>

#include <device/block.h>
#include <device/current_device.h>
#include <device/pinned_memory.h>
#include <eager/copy_program.h>
#include <tensor/transfer.h>

namespace neuron {
namespace {

bool is_dense(const at::Tensor& tensor) { return tensor.is_non_overlapping_and_dense(); }

c10::DeviceIndex index_of(const at::Tensor& tensor) { return tensor.device().index(); }

at::Tensor empty_on_cpu_like(const at::Tensor& tensor) {
  return at::Tensor(at::detail::empty_strided_cpu(tensor.sizes(), tensor.strides(), tensor.scalar_type()));
}

// Host to device. A dense destination, whatever the order of its dimensions, takes its memory as it
// is: the host permutes.
void upload(const at::Tensor& destination, const at::Tensor& source, bool non_blocking) {
  if (!is_dense(destination)) {
    at::assert_no_internal_overlap(destination);
    const at::Tensor dense = at::empty(destination.sizes(), destination.options());
    upload(dense, source, non_blocking);
    copy_on_device(destination, dense);
    return;
  }
  const bool as_it_is =
      source.scalar_type() == destination.scalar_type() && source.sizes() == destination.sizes() &&
      (source.strides() == destination.strides() || (source.is_contiguous() && destination.is_contiguous()));
  const at::Tensor host = as_it_is ? source : empty_on_cpu_like(destination).copy_(source);
  const void* data = host.const_data_ptr();
  if (as_it_is && non_blocking && is_pinned(data)) {
    write_block_later(index_of(destination), block_of(destination), byte_offset(destination), host.storage(), data,
                      host.nbytes());
  } else {
    write_block(index_of(destination), block_of(destination), byte_offset(destination), data, host.nbytes());
  }
}

// The bytes from the first to the last element of a view.
size_t window_bytes(const at::Tensor& tensor) {
  return at::detail::computeStorageNbytes(tensor.sizes(), tensor.strides(), tensor.itemsize());
}

// The elements of a device tensor on the host, with some strides.
at::Tensor download(const at::Tensor& source) {
  if (is_dense(source)) {
    at::Tensor host = empty_on_cpu_like(source);
    read_block(index_of(source), block_of(source), byte_offset(source), host.mutable_data_ptr(), host.nbytes());
    return host;
  }
  const size_t window = window_bytes(source);
  if (window <= 2 * source.nbytes()) {
    // Slices with small gaps, and expanded tensors.
    at::Tensor host = empty_on_cpu_like(source);
    read_block(index_of(source), block_of(source), byte_offset(source), host.mutable_data_ptr(), window);
    return host;
  }
  const at::Tensor dense = at::empty(source.sizes(), source.options());
  copy_on_device(dense, source);
  return download(dense);
}

void download_to(const at::Tensor& destination, const at::Tensor& source, bool non_blocking) {
  const bool as_it_is =
      source.scalar_type() == destination.scalar_type() && source.sizes() == destination.sizes() && is_dense(source) &&
      is_dense(destination) &&
      (source.strides() == destination.strides() || (source.is_contiguous() && destination.is_contiguous()));
  if (!as_it_is) {
    destination.copy_(download(source));
    return;
  }
  void* data = destination.mutable_data_ptr();
  if (non_blocking && is_pinned(data)) {
    read_block_later(index_of(source), block_of(source), byte_offset(source), destination.storage(), data,
                     source.nbytes());
  } else {
    read_block(index_of(source), block_of(source), byte_offset(source), data, source.nbytes());
  }
}

void copy_same_device(const at::Tensor& destination, const at::Tensor& source) {
  at::assert_no_internal_overlap(destination);
  at::assert_no_partial_overlap(destination, source);
  const bool as_it_is = source.scalar_type() == destination.scalar_type() && source.sizes() == destination.sizes() &&
                        is_dense(source) && is_dense(destination) && source.strides() == destination.strides();
  if (as_it_is) {
    copy_block(index_of(destination), block_of(destination), byte_offset(destination), block_of(source),
               byte_offset(source), source.nbytes());
  } else {
    copy_on_device(destination, source);
  }
}

void copy_plain(const at::Tensor& destination, const at::Tensor& source, bool non_blocking) {
  const bool to_device = destination.device().type() == kNeuron;
  const bool from_device = source.device().type() == kNeuron;
  if (to_device && from_device) {
    if (destination.device() == source.device()) {
      copy_same_device(destination, source);
    } else {
      upload(destination, download(source), false);  // memory of another core: through the host
    }
  } else if (to_device) {
    TORCH_CHECK(source.device().is_cpu(), "Cannot copy from ", source.device(), " to ", destination.device(),
                ": copy to the CPU first.");
    upload(destination, source, non_blocking);
  } else {
    TORCH_CHECK(destination.device().is_cpu(), "Cannot copy from ", source.device(), " to ", destination.device(),
                ": copy to the CPU first.");
    download_to(destination, source, non_blocking);
  }
}

}  // namespace

void copy(const at::Tensor& destination, const at::Tensor& source, bool non_blocking) {
  TORCH_CHECK(destination.defined() && source.defined(), "copy_: both tensors must be defined.");
  if (destination.is_same(source) || destination.is_meta()) return;
  // Lazy conjugation and negation are bits of the view. Of both views the same: the bits cancel.
  if (destination.is_conj()) return copy(destination.conj(), source.conj(), non_blocking);
  if (destination.is_neg()) return copy(at::_neg_view(destination), at::_neg_view(source), non_blocking);
  if (source.is_conj() || source.is_neg()) {
    if (source.device().is_cpu()) return copy(destination, source.resolve_conj().resolve_neg(), non_blocking);
    at::Tensor plain = source.is_conj() ? source.conj() : source;
    if (plain.is_neg()) plain = at::_neg_view(plain);
    copy(destination, plain, non_blocking);
    if (source.is_conj() && destination.is_complex()) destination.conj_physical_();
    if (source.is_neg()) destination.neg_();
    return;
  }
  const at::Tensor expanded = source.sizes() == destination.sizes() ? source : source.expand(destination.sizes());
  if (destination.numel() == 0) return;
  copy_plain(destination, expanded, non_blocking);
}

}  // namespace neuron
