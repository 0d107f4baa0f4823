// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <utility>

#include <ATen/core/Generator.h>
#include <c10/core/GeneratorImpl.h>

namespace neuron {

// Random numbers are counter-based (Philox): a generator is a seed and how far the counter has
// gone. Programs take both as operands. The device computes; nothing is drawn on the host.
class NeuronGenerator final : public c10::GeneratorImpl {
 public:
  explicit NeuronGenerator(c10::DeviceIndex device);

  static c10::DeviceType device_type() { return c10::DeviceType::PrivateUse1; }

  void set_current_seed(uint64_t seed) override;
  uint64_t current_seed() const override { return seed_; }
  // A new seed from the operating system.
  uint64_t seed() override;
  void set_offset(uint64_t offset) override { offset_ = offset; }
  uint64_t get_offset() const override { return offset_; }
  // 16 bytes on the CPU: the seed, then the offset.
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override;
  void set_state(const c10::TensorImpl& state) override;

  // Seed and offset for an operator that draws at most `increment` values of the counter, which
  // moves on. The caller holds mutex_.
  std::pair<uint64_t, uint64_t> philox_state(uint64_t increment);

 private:
  NeuronGenerator* clone_impl() const override;

  uint64_t seed_ = c10::default_rng_seed_val;
  uint64_t offset_ = 0;
};

// The generator of a device (-1: of the current one) that operators use when given none.
const at::Generator& default_generator(c10::DeviceIndex device);

// Takes mutex_ of `generator` (absent: the default one of `device`) and calls philox_state.
std::pair<uint64_t, uint64_t> draw_philox_state(const std::optional<at::Generator>& generator, c10::DeviceIndex device,
                                                uint64_t increment);

}  // namespace neuron
