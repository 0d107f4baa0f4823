// SPDX-License-Identifier: Apache-2.0
#include <device/generator.h>

#include <array>
#include <cstring>
#include <mutex>

#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>

#include <device/current_device.h>

namespace neuron {
namespace {

constexpr size_t kStateBytes = 2 * sizeof(uint64_t);

}  // namespace

NeuronGenerator::NeuronGenerator(c10::DeviceIndex device)
    : c10::GeneratorImpl(c10::Device(kNeuron, device < 0 ? current_device() : device),
                         c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)) {}

void NeuronGenerator::set_current_seed(uint64_t seed) {
  seed_ = seed;
  offset_ = 0;
}

uint64_t NeuronGenerator::seed() {
  set_current_seed(c10::detail::getNonDeterministicRandom());
  return seed_;
}

c10::intrusive_ptr<c10::TensorImpl> NeuronGenerator::get_state() const {
  const at::TensorBase state = at::detail::empty_cpu({static_cast<int64_t>(kStateBytes)}, at::kByte);
  auto* bytes = static_cast<uint8_t*>(state.mutable_data_ptr());
  std::memcpy(bytes, &seed_, sizeof(seed_));
  std::memcpy(bytes + sizeof(seed_), &offset_, sizeof(offset_));
  return state.getIntrusivePtr();
}

void NeuronGenerator::set_state(const c10::TensorImpl& state) {
  TORCH_CHECK_TYPE(state.device_type() == c10::DeviceType::CPU && state.dtype() == caffe2::TypeMeta::Make<uint8_t>(),
                   "The state of a random generator must be a torch.ByteTensor on the CPU.");
  TORCH_CHECK(state.is_contiguous() && state.numel() == static_cast<int64_t>(kStateBytes),
              "The state of a neuron generator has ", kStateBytes, " bytes (seed, offset), but this one has ",
              state.numel(), ".");
  const auto* bytes = static_cast<const uint8_t*>(state.data());
  std::memcpy(&seed_, bytes, sizeof(seed_));
  std::memcpy(&offset_, bytes + sizeof(seed_), sizeof(offset_));
}

std::pair<uint64_t, uint64_t> NeuronGenerator::philox_state(uint64_t increment) {
  const uint64_t offset = offset_;
  offset_ += increment;
  return {seed_, offset};
}

NeuronGenerator* NeuronGenerator::clone_impl() const {
  auto* clone = new NeuronGenerator(device().index());
  clone->seed_ = seed_;
  clone->offset_ = offset_;
  return clone;
}

const at::Generator& default_generator(c10::DeviceIndex device) {
  if (device < 0) device = current_device();
  check_device(device);
  static auto* mutex = new std::mutex;
  static auto* generators = new std::array<at::Generator, 128>;
  std::lock_guard<std::mutex> lock(*mutex);
  at::Generator& generator = (*generators)[static_cast<size_t>(device)];
  if (!generator.defined()) generator = at::make_generator<NeuronGenerator>(device);
  return generator;
}

std::pair<uint64_t, uint64_t> draw_philox_state(const std::optional<at::Generator>& generator, c10::DeviceIndex device,
                                                uint64_t increment) {
  const bool given = generator.has_value() && generator->defined();
  at::Generator chosen = given ? *generator : default_generator(device);
  TORCH_CHECK(chosen.device().type() == kNeuron, "Expected a generator of device neuron, but got one of ",
              chosen.device(), ".");
  auto& implementation = *chosen.get<NeuronGenerator>();
  std::lock_guard<std::mutex> lock(implementation.mutex_);
  return implementation.philox_state(increment);
}

}  // namespace neuron
