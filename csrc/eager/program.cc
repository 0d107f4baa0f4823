// SPDX-License-Identifier: Apache-2.0
#include "program.h"

#include <array>
#include <chrono>

#include <c10/util/SmallVector.h>

#include "../device/launch_queue.h"
#include "../nrt/runtime.h"
#include "scalar_pool.h"

namespace neuron {
namespace {

// "input0" … and "output0" …: the names that compilers give to the parameters and results of main.
class SlotNames {
 public:
  explicit SlotNames(const char* prefix) : prefix_(prefix) {
    for (size_t i = 0; i < names_.size(); ++i) names_[i] = prefix_ + std::to_string(i);
  }
  const char* at(size_t index) const {
    if (index < names_.size()) return names_[index].c_str();
    thread_local std::string text;
    text = prefix_ + std::to_string(index);
    return text.c_str();
  }

 private:
  std::string prefix_;
  std::array<std::string, 1024> names_;  // short ones lie within
};

const char* input_name(size_t index) {
  static const auto* names = new SlotNames("input");
  return names->at(index);
}

const char* output_name(size_t index) {
  static const auto* names = new SlotNames("output");
  return names->at(index);
}

using Tensors = c10::SmallVector<nrt_tensor_t*, 128>;

NRT_STATUS fill(nrt_tensor_set_t* set, bool outputs, const Tensors& tensors) {
  const Runtime& nrt = runtime();
  if (nrt.neuroncore_fill_tensor_set != nullptr) {
    return nrt.neuroncore_fill_tensor_set(set, outputs, tensors.data(), tensors.size());
  }
  for (size_t i = 0; i < tensors.size(); ++i) {
    const char* name = outputs ? output_name(i) : input_name(i);
    if (const NRT_STATUS status = nrt.add_tensor_to_tensor_set(set, name, tensors[i])) return status;
  }
  return NRT_SUCCESS;
}

// Slices live for one launch.
class Slices {
 public:
  ~Slices() {
    for (nrt_tensor_t* slice : slices_) runtime().tensor_free(&slice);
  }
  nrt_tensor_t* make(const Operand& operand) {
    nrt_tensor_t* slice = nullptr;
    const NRT_STATUS status =
        runtime().tensor_allocate_slice(operand.block, operand.offset, operand.bytes, nullptr, &slice);
    if (status != NRT_SUCCESS) throw ProgramError(status, "slicing an operand failed: " + describe_status(status));
    slices_.push_back(slice);
    return slice;
  }

 private:
  c10::SmallVector<nrt_tensor_t*, 8> slices_;
};

}  // namespace

void Program::ready(std::string neff) {
  std::lock_guard<std::mutex> lock(mutex_);
  neff_ = std::move(neff);
  state_.store(State::Ready, std::memory_order_release);
  compiled_.notify_all();
}

void Program::failed(std::string message) {
  std::lock_guard<std::mutex> lock(mutex_);
  failure_ = std::move(message);
  state_.store(State::Failed, std::memory_order_release);
  compiled_.notify_all();
}

void Program::wait_until_compiled() {
  State state = state_.load(std::memory_order_acquire);
  if (state == State::Compiling) {
    std::unique_lock<std::mutex> lock(mutex_);
    compiled_.wait(lock, [&] { return state_.load() != State::Compiling; });
    state = state_.load();
  }
  if (state == State::Failed) throw ProgramError(NRT_FAILURE, failure_);
}

Program::Loaded& Program::load(c10::DeviceIndex device) {
  std::atomic<Loaded*>& place = loaded_[static_cast<size_t>(device)];
  if (Loaded* loaded = place.load(std::memory_order_acquire)) return *loaded;
  std::lock_guard<std::mutex> lock(loading_);
  if (Loaded* loaded = place.load(std::memory_order_acquire)) return *loaded;
  Loaded loaded;
  const auto check = [&](NRT_STATUS status, const char* what) {
    if (status != NRT_SUCCESS) {
      throw ProgramError(status, description_ + ": " + what + " failed: " + describe_status(status));
    }
  };
  check(runtime().allocate_tensor_set(&loaded.inputs), "allocating a tensor set");
  check(runtime().allocate_tensor_set(&loaded.outputs), "allocating a tensor set");
  check(runtime().load(neff_.data(), neff_.size(), core_of(device), 1, &loaded.model), "loading the program");
  place.store(new Loaded(loaded), std::memory_order_release);
  return *place.load();
}

void Program::preload(c10::DeviceIndex device) {
  if (state_.load(std::memory_order_acquire) != State::Ready) return;
  try {
    load(device);
  } catch (const std::exception&) {
    // The first launch meets the same failure, and reports it.
  }
}

void Program::execute(c10::DeviceIndex device, const Launch& launch) {
  wait_until_compiled();
  Loaded& loaded = load(device);
  const auto check = [&](NRT_STATUS status) {
    if (status != NRT_SUCCESS) throw ProgramError(status, description_ + " failed: " + describe_status(status));
  };
  Slices slices;
  Tensors tensors;
  for (const Operand& operand : launch.inputs) {
    tensors.push_back(operand.scalar != ScalarKind::None     ? scalar_tensor(device, operand.scalar, operand.bits)
                      : operand.whole || operand.offset == 0 ? operand.block
                                                             : slices.make(operand));
  }
  check(fill(loaded.inputs, /*outputs=*/false, tensors));
  tensors.clear();
  for (const Operand& operand : launch.outputs) {
    tensors.push_back(operand.whole ? operand.block : slices.make(operand));
  }
  check(fill(loaded.outputs, /*outputs=*/true, tensors));
  const auto start = std::chrono::steady_clock::now();
  const NRT_STATUS status = runtime().execute(loaded.model, loaded.inputs, loaded.outputs);
  const double us = std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count();
  estimated_us_.store(0.75 * estimated_us_.load(std::memory_order_relaxed) + 0.25 * us, std::memory_order_relaxed);
  check(status);
}

}  // namespace neuron
