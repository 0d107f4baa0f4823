// SPDX-License-Identifier: Apache-2.0
#include <ATen/EmptyTensor.h>
#include <ATen/ops/_local_scalar_dense.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/is_set_to_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <torch/library.h>

#include <device/block.h>
#include <tensor/copy.h>
#include <tensor/factories.h>
#include <tensor/resize.h>
#include <tensor/transfer.h>

// The operators that make tensors exist. Everything that computes is registered in csrc/eager.
namespace neuron {
namespace {

at::Tensor& copy_(at::Tensor& self, const at::Tensor& source, bool non_blocking) {
  copy(self, source, non_blocking);
  return self;
}

at::Tensor copy_from(const at::Tensor& self, const at::Tensor& destination, bool non_blocking) {
  copy(destination, self, non_blocking);
  return destination;
}

at::Tensor copy_from_and_resize(const at::Tensor& self, const at::Tensor& destination) {
  if (destination.sizes() != self.sizes()) destination.resize_(self.sizes());
  copy(destination, self, false);
  return destination;
}

// Compares on the device and reads one value.
bool equal(const at::Tensor& self, const at::Tensor& other) {
  if (self.sizes() != other.sizes()) return false;
  return self.eq(other).all().item<bool>();
}

at::Scalar local_scalar_dense(const at::Tensor& self) {
  const at::Tensor host(at::detail::empty_cpu({}, self.scalar_type()));
  read_block(self.device().index(), block_of(self), byte_offset(self), host.mutable_data_ptr(), host.nbytes());
  const at::Scalar value = at::_local_scalar_dense(host);
  if (self.is_conj()) return value.conj();
  return value;
}

// Whether `self.data = from` is allowed. PyTorch's own answer knows the devices that it ships; without this one,
// Module.to() would make new parameters, which unties shared weights and leaves optimizers with the old ones.
bool has_compatible_shallow_copy_type(const at::Tensor& self, const at::Tensor& from) {
  const auto dense = [](const at::Tensor& tensor) {
    return tensor.layout() == at::kStrided && (tensor.is_cpu() || tensor.is_privateuseone());
  };
  return dense(self) && dense(from);
}

void record_stream(at::Tensor&, c10::Stream) {}  // all streams of a device share one queue

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", &neuron::empty);
  m.impl("empty_strided", &neuron::empty_strided);
  m.impl("as_strided", &at::native::as_strided_tensorimpl);
  m.impl("view", &at::native::view);
  m.impl("_reshape_alias", &at::native::_reshape_alias);
  m.impl("unfold", &at::native::unfold);
  m.impl("view_as_real", &at::native::view_as_real);
  m.impl("view_as_complex", &at::native::view_as_complex);
  m.impl("resize_", &neuron::resize_);
  m.impl("set_", &set_empty_);
  m.impl("set_.source_Storage", static_cast<at::Tensor& (*)(at::Tensor&, at::Storage)>(&at::native::set_));
  m.impl("set_.source_Storage_storage_offset", &set_storage_);
  m.impl("set_.source_Tensor", &at::native::set_tensor_);
  m.impl("is_set_to", &at::native::is_set_to);
  m.impl("copy_", &copy_);
  m.impl("_copy_from", &copy_from);
  m.impl("_copy_from_and_resize", &copy_from_and_resize);
  m.impl("equal", &equal);
  m.impl("_local_scalar_dense", &local_scalar_dense);
  m.impl("record_stream", &record_stream);
  m.impl("_has_compatible_shallow_copy_type", &has_compatible_shallow_copy_type);
}

}  // namespace
}  // namespace neuron
