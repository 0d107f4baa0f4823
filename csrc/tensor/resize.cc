// SPDX-License-Identifier: Apache-2.0
#include <tensor/resize.h>

#include <ATen/EmptyTensor.h>
#include <ATen/native/Resize.h>

#include <device/allocator.h>
#include <tensor/storage.h>

namespace neuron {
namespace {

// Sets sizes and strides (contiguous ones, if none are given); the storage grows if it must.
void set_geometry(at::TensorImpl& tensor, at::IntArrayRef size, at::OptionalIntArrayRef stride) {
  if (tensor.sizes() == size && (!stride || tensor.strides() == *stride)) return;
  const auto offset = static_cast<size_t>(tensor.storage_offset());
  size_t bytes = 0;
  if (stride) {
    bytes = at::detail::computeStorageNbytes(size, *stride, tensor.itemsize(), offset);
    tensor.set_sizes_and_strides(size, *stride);
  } else {
    bytes = at::detail::computeStorageNbytesContiguous(size, tensor.itemsize(), offset);
    tensor.set_sizes_contiguous(size);
  }
  c10::StorageImpl& storage = *tensor.unsafe_storage().unsafeGetStorageImpl();
  if (tensor.numel() > 0 && storage.nbytes() < bytes) resize_storage(storage, bytes);
}

}  // namespace

const at::Tensor& resize_(const at::Tensor& self, at::IntArrayRef size, std::optional<at::MemoryFormat> memory_format) {
  at::TensorImpl& tensor = *self.unsafeGetTensorImpl();
  set_geometry(tensor, size, std::nullopt);
  if (memory_format.has_value()) {
    TORCH_CHECK(*memory_format != at::MemoryFormat::Preserve, "Unsupported memory format: ", *memory_format);
    tensor.empty_tensor_restride(*memory_format);
  }
  return self;
}

at::Tensor& set_storage_(at::Tensor& self, at::Storage source, int64_t storage_offset, at::IntArrayRef size,
                         at::IntArrayRef stride) {
  at::native::checkSetStorage(self, std::move(source), storage_offset, size, stride);
  at::TensorImpl& tensor = *self.unsafeGetTensorImpl();
  tensor.set_storage_offset(storage_offset);
  set_geometry(tensor, size, stride.data() != nullptr ? at::OptionalIntArrayRef(stride) : std::nullopt);
  return self;
}

at::Tensor& set_empty_(at::Tensor& self) {
  DeviceAllocator& allocator = device_allocator();
  at::Storage nothing(c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), 0,
                                                            allocator.allocate_on(self.device().index(), 0), &allocator,
                                                            /*resizable=*/true));
  return set_storage_(self, std::move(nothing), 0, {0}, {});
}

}  // namespace neuron
