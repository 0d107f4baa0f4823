// SPDX-License-Identifier: Apache-2.0
#include <ATen/detail/PrivateUse1HooksInterface.h>

#include <device/allocator.h>
#include <device/current_device.h>
#include <device/generator.h>
#include <device/pinned_memory.h>
#include <nrt/runtime.h>
#include <tensor/storage.h>

namespace neuron {
namespace {

// What generic PyTorch code asks an accelerator for.
struct NeuronHooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return visible_core_count() > 0; }
  void init() const override { runtime(); }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return runtime_initialized(); }

  c10::DeviceIndex deviceCount() const override { return static_cast<c10::DeviceIndex>(visible_core_count()); }
  c10::DeviceIndex getCurrentDevice() const override { return current_device(); }
  void setCurrentDevice(c10::DeviceIndex device) const override { set_current_device(device); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override { return exchange_device(device); }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override { return exchange_device(device); }

  const at::Generator& getDefaultGenerator(c10::DeviceIndex device) const override { return default_generator(device); }
  at::Generator getNewGenerator(c10::DeviceIndex device) const override {
    if (device >= 0) check_device(device);
    return at::make_generator<NeuronGenerator>(device);
  }

  bool isPinnedPtr(const void* pointer) const override { return is_pinned(pointer); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return pinned_memory_allocator(); }
  c10::Device getDeviceFromPtr(void*) const override { return {kNeuron, current_device()}; }

  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    resize_storage(*storage.unsafeGetStorageImpl(), bytes);
  }
};

[[maybe_unused]] const bool g_registered = [] {
  at::RegisterPrivateUse1HooksInterface(new NeuronHooks);
  c10::SetAllocator(kNeuron, &device_allocator());
  return true;
}();

}  // namespace
}  // namespace neuron
