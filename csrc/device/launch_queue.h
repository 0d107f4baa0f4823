// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <limits>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <c10/core/Device.h>
#include <c10/util/SmallVector.h>

#include <nrt/nrt.h>
#include <nrt/nrt_status.h>

#include "../eager/call_site.h"

namespace neuron {

class Program;

// A scalar handed to a program at run time (a Python float, a 0-dim CPU tensor, a seed). Its
// value is no part of the program, so a new value compiles nothing.
enum class ScalarKind : uint8_t { None, F32, F64, I64, Bool };

// One operand of a launch: a byte range of an allocator block, or a scalar.
struct Operand {
  nrt_tensor_t* block = nullptr;  // null: `bits` holds a scalar
  size_t offset = 0;              // bytes from the start of the block
  size_t bytes = 0;
  bool whole = false;  // covers all that its storage holds: the block itself is handed over
  ScalarKind scalar = ScalarKind::None;
  uint64_t bits = 0;
};

inline Operand scalar_operand(ScalarKind kind, uint64_t bits) {
  Operand operand;
  operand.scalar = kind;
  operand.bits = bits;
  return operand;
}

// The estimate of work that other processes wait for: the worker gets it at once, because this one may never ask.
constexpr double kAwaitedUs = 1e6;

// What the core runs next. Slots are reused, so that a launch allocates nothing.
struct Launch {
  Program* program = nullptr;
  c10::SmallVector<Operand, 8> inputs;
  c10::SmallVector<Operand, 4> outputs;
  CallSite site;
  std::function<void()> task;  // set instead of `program`: a copy, an event, a callback
};

// A failure of asynchronous work, kept until a caller waits.
struct ReportedError {
  NRT_STATUS status = NRT_SUCCESS;
  std::string message;
  CallSite site;
  bool in_graph = false;
};

// The launches of one core, in order. A worker thread runs them; a caller that has to wait runs
// what is left itself, because waking a sleeping thread costs more than most operators. All
// streams of a device feed this one queue, so a block that the host has freed may be handed out
// again at once: its next user stands behind its last one.
class LaunchQueue {
 public:
  static LaunchQueue& of(c10::DeviceIndex device);
  // Queues that exist (a device that was never used has none).
  static void for_each(const std::function<void(LaunchQueue&)>& visit);

  // Appends one launch: `fill` sets the slot, under the producers' lock. Returns its sequence
  // number. Throws nothing that the core reports: that surfaces at the next wait.
  template <typename Fill>
  uint64_t enqueue(double estimated_us, const Fill& fill) {
    std::unique_lock<std::mutex> lock(producers_);
    Launch& slot = claim(lock);
    fill(slot);
    return publish(estimated_us);
  }

  // Appends a task that runs in order on whichever thread drives the core.
  uint64_t enqueue_task(double estimated_us, std::function<void()> task);

  // For what a compiled graph has enqueued: its caller has work of its own, a few ten microseconds of Python, before it
  // can wait. The worker takes it at once if it is awake, and is kept awake while such calls follow each other closely.
  void offer(uint64_t sequence);

  // Runs everything before, then `task`, on the calling thread, then raises what earlier work has
  // reported. For reads and writes that the caller must see done.
  void run(const std::function<void()>& task);

  // True when everything up to `sequence` has run. Wakes the worker otherwise, so that polling ends.
  bool done(uint64_t sequence);
  // Waits for `sequence` (running launches itself); raises nothing.
  void wait(uint64_t sequence);
  // The same, but while another thread drives the core only for so long. True when `sequence` is done.
  bool wait_for(uint64_t sequence, std::chrono::milliseconds patience);
  // Waits for all work, then raises the first error that asynchronous work has reported.
  void synchronize();
  // The same without raising.
  void drain();
  // Raises (and clears) the first reported error.
  void raise_reported_error();
  uint64_t last_enqueued() const { return enqueued_.load(std::memory_order_acquire); }
  c10::DeviceIndex device() const { return device_; }

 private:
  explicit LaunchQueue(c10::DeviceIndex device);
  Launch& claim(std::unique_lock<std::mutex>& lock);
  uint64_t publish(double estimated_us);
  bool run_one();
  void run_until(uint64_t sequence, std::optional<std::chrono::milliseconds> patience = std::nullopt);
  bool acquire() { return !driven_.exchange(true, std::memory_order_seq_cst); }
  void release();
  void wake_waiters();
  void execute(Launch& launch);
  void report(ReportedError error);
  void work();

  void request(uint64_t sequence);
  bool lingers() const;

  static constexpr uint64_t kSlots = 1024;
  static constexpr uint64_t kNothing = std::numeric_limits<uint64_t>::max();

  c10::DeviceIndex device_;
  std::vector<Launch> slots_;
  std::mutex producers_;
  std::atomic<bool> driven_{false};  // some thread runs launches now
  std::atomic<uint64_t> enqueued_{0};
  std::atomic<uint64_t> completed_{0};
  std::atomic<uint64_t> requested_{0};  // what the worker is to run; the rest waits for company or for a caller
  double pending_us_ = 0;               // of what is enqueued since the worker was last woken; producers' lock
  std::atomic<uint32_t> wakeups_{0};
  std::atomic<bool> sleeping_{true};
  std::atomic<int64_t> last_offer_ns_{0};
  std::atomic<int> close_offers_{0};  // in a row
  std::atomic<uint32_t> waiters_{0};
  std::atomic<uint64_t> awaited_{kNothing};  // the first launch that a sleeping waiter waits for
  std::mutex waiters_mutex_;
  std::condition_variable waiters_condition_;
  std::atomic<bool> has_error_{false};
  std::mutex error_mutex_;
  ReportedError error_;
  std::once_flag started_;
};

}  // namespace neuron
