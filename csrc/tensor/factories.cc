// SPDX-License-Identifier: Apache-2.0
#include <tensor/factories.h>

#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/native/TensorFactories.h>
#include <c10/core/DefaultDtype.h>

#include <device/allocator.h>
#include <device/current_device.h>
#include <eager/registration.h>

namespace neuron {
namespace {

// Makes a device current for a scope: the allocator takes the current one.
class OnDevice {
 public:
  explicit OnDevice(std::optional<at::Device> device) : before_(current_device()) {
    if (device.has_value() && device->has_index() && device->index() != before_) set_current_device(device->index());
  }
  ~OnDevice() { set_current_device_unchecked(before_); }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

 private:
  c10::DeviceIndex before_;
};

at::ScalarType checked_dtype(std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout,
                             std::optional<bool> pin_memory) {
  TORCH_CHECK_NOT_IMPLEMENTED(layout.value_or(at::Layout::Strided) == at::Layout::Strided,
                              "neuron tensors are strided; layout ", *layout, " is not supported.");
  TORCH_CHECK(!pin_memory.value_or(false), "Only dense CPU tensors can be pinned.");
  const at::ScalarType type = dtype.value_or(c10::get_default_dtype_as_scalartype());
  return type;
}

constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);

at::Tensor filled_if_deterministic(at::Tensor tensor) {
  const at::Context& context = at::globalContext();
  if (C10_UNLIKELY(context.deterministicAlgorithms() && context.deterministicFillUninitializedMemory()))
    at::native::fill_empty_deterministic_(tensor);
  return tensor;
}

}  // namespace

at::Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout,
                 std::optional<at::Device> device, std::optional<bool> pin_memory,
                 std::optional<at::MemoryFormat> memory_format) {
  ensure_operators_registered();
  const at::ScalarType type = checked_dtype(dtype, layout, pin_memory);
  const OnDevice scope(device);
  return filled_if_deterministic(
      at::Tensor(at::detail::empty_generic(size, &device_allocator(), kKeys, type, memory_format)));
}

at::Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride, std::optional<at::ScalarType> dtype,
                         std::optional<at::Layout> layout, std::optional<at::Device> device,
                         std::optional<bool> pin_memory) {
  ensure_operators_registered();
  const at::ScalarType type = checked_dtype(dtype, layout, pin_memory);
  const OnDevice scope(device);
  return filled_if_deterministic(
      at::Tensor(at::detail::empty_strided_generic(size, stride, &device_allocator(), kKeys, type)));
}

at::Tensor new_tensor(at::IntArrayRef sizes, at::IntArrayRef strides, at::ScalarType dtype, size_t bytes,
                      c10::DeviceIndex device) {
  DeviceAllocator& allocator = device_allocator();
  auto storage = c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), bytes,
                                                       allocator.allocate_on(device, bytes), &allocator,
                                                       /*resizable=*/true);
  at::Tensor tensor =
      at::detail::make_tensor<c10::TensorImpl>(std::move(storage), kKeys, c10::scalarTypeToTypeMeta(dtype));
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides);
  return tensor;
}

}  // namespace neuron
