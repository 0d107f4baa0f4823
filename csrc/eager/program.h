// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <stdexcept>
#include <string>

#include <c10/core/Device.h>

#include <nrt/nrt.h>
#include <nrt/nrt_status.h>

namespace neuron {

struct Launch;

// A launch that failed: the message names the operator and its operands.
class ProgramError : public std::runtime_error {
 public:
  ProgramError(NRT_STATUS status, const std::string& message) : std::runtime_error(message), status_(status) {}
  NRT_STATUS status() const { return status_; }

 private:
  NRT_STATUS status_;
};

// One compiled program, or one that is being compiled: launches may be enqueued before the NEFF
// is there, so that the misses of consecutive operators compile side by side.
// Programs live as long as the process (they are the program table).
class Program {
 public:
  // description: operator with dtypes and shapes, for errors: "aten::add.Tensor(f32[4, 5], f32[5])".
  // is_graph: a compiled graph, which fails with an exception of its own.
  explicit Program(std::string description, bool is_graph = false)
      : description_(std::move(description)), is_graph_(is_graph) {}
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  // The compile thread's verdict, once.
  void ready(std::string neff);
  void failed(std::string message);

  // Loads the model on a core before its first launch does. Does nothing before the program is ready.
  void preload(c10::DeviceIndex device);

  // Runs on the thread that drives the core.
  void execute(c10::DeviceIndex device, const Launch& launch);

  double estimated_us() const { return estimated_us_.load(std::memory_order_relaxed); }
  void guess_estimate(double us) { estimated_us_.store(us, std::memory_order_relaxed); }
  const std::string& description() const { return description_; }
  bool is_graph() const { return is_graph_; }

 private:
  // A model loaded on one core, with the tensor sets that its launches refill.
  struct Loaded {
    nrt_model_t* model = nullptr;
    nrt_tensor_set_t* inputs = nullptr;
    nrt_tensor_set_t* outputs = nullptr;
  };
  Loaded& load(c10::DeviceIndex device);
  void wait_until_compiled();

  enum class State : uint8_t { Compiling, Ready, Failed };

  const std::string description_;
  const bool is_graph_;
  std::atomic<State> state_{State::Compiling};
  std::atomic<double> estimated_us_{50};
  std::mutex mutex_;
  std::mutex loading_;
  std::condition_variable compiled_;
  std::string neff_;
  std::string failure_;
  std::array<std::atomic<Loaded*>, 128> loaded_{};  // by device
};

}  // namespace neuron
