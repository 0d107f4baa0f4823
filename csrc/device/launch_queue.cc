// SPDX-License-Identifier: Apache-2.0
#include "launch_queue.h"

#include <algorithm>
#include <array>
#include <thread>

#include <c10/util/Exception.h>

#include "../eager/program.h"
#include "../eager/python_values.h"
#include "../kernels/kernels.h"
#include "../nrt/environment.h"
#include "../nrt/gil.h"
#include "../nrt/runtime.h"

namespace neuron {
namespace {

// What the worker is given at least; less waits for company or for a caller. Waking the worker costs as much, and a
// caller that waits for little work runs it sooner itself, with the data in its own cache, even while the worker spins.
constexpr double kHandOverThresholdUs = 60;
constexpr uint64_t kHandOverThresholdLaunches = 64;
constexpr int kSpins = 2000;
// Calls of compiled graphs that are no further apart, so many in a row, are worth a thread that spins between them.
constexpr int64_t kCloseNs = 100'000;
constexpr int kCloseOffers = 8;

constexpr size_t kMaxDevices = 128;
std::array<std::atomic<LaunchQueue*>, kMaxDevices> queues{};
std::mutex& creation_mutex() {
  static auto* mutex = new std::mutex;
  return *mutex;
}

// Set on a thread while it runs launches, so that a task may wait for earlier work without
// waiting for itself.
thread_local LaunchQueue* running = nullptr;
thread_local bool is_worker = false;

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

int64_t now_ns() { return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1); }

// Raises torch_neuronx.dynamo.errors.NEFFExecutionError, a RuntimeError.
void raise_graph_error(const std::string& message) {
  TORCH_CHECK(Py_IsInitialized(), message);
  const InterpreterLock lock;
  const PythonObject module(PyImport_ImportModule("torch_neuronx.dynamo.errors"));
  const PythonObject type(module ? PyObject_GetAttrString(module.get(), "NEFFExecutionError") : nullptr);
  if (type) PyErr_SetString(type.get(), message.c_str());
  raise_python_error();
}

}  // namespace

LaunchQueue& LaunchQueue::of(c10::DeviceIndex device) {
  TORCH_CHECK(device >= 0 && static_cast<size_t>(device) < kMaxDevices, "neuron:", static_cast<int>(device),
              " is no valid device index");
  auto& place = queues[device];
  if (LaunchQueue* queue = place.load(std::memory_order_acquire)) return *queue;
  std::lock_guard<std::mutex> lock(creation_mutex());
  if (!place.load()) place.store(new LaunchQueue(device));  // leaked: workers outlive the interpreter
  return *place.load();
}

void LaunchQueue::for_each(const std::function<void(LaunchQueue&)>& visit) {
  for (auto& place : queues) {
    if (LaunchQueue* queue = place.load(std::memory_order_acquire)) visit(*queue);
  }
}

LaunchQueue::LaunchQueue(c10::DeviceIndex device) : device_(device), slots_(kSlots) {}

Launch& LaunchQueue::claim(std::unique_lock<std::mutex>& lock) {
  const uint64_t next = enqueued_.load(std::memory_order_relaxed) + 1;
  while (next - completed_.load(std::memory_order_acquire) > kSlots) {
    lock.unlock();
    wait(next - kSlots);
    lock.lock();
    return claim(lock);
  }
  return slots_[next % kSlots];
}

uint64_t LaunchQueue::publish(double estimated_us) {
  const uint64_t sequence = enqueued_.load(std::memory_order_relaxed) + 1;
  enqueued_.store(sequence, std::memory_order_seq_cst);
  // Where callers have drained the queue themselves, nothing of it is left for the worker.
  if (completed_.load(std::memory_order_relaxed) == sequence - 1) pending_us_ = 0;
  pending_us_ += estimated_us;
  if (pending_us_ > kHandOverThresholdUs ||
      sequence - completed_.load(std::memory_order_relaxed) > kHandOverThresholdLaunches) {
    pending_us_ = 0;
    request(sequence);
  }
  return sequence;
}

void LaunchQueue::request(uint64_t sequence) {
  // Requests of several threads come in any order.
  uint64_t before = requested_.load(std::memory_order_relaxed);
  while (before < sequence && !requested_.compare_exchange_weak(before, sequence, std::memory_order_seq_cst)) {
  }
  std::call_once(started_, [this] { std::thread([this] { work(); }).detach(); });
  // Read after the store: the worker reads them the other way round before it sleeps.
  if (!sleeping_.load(std::memory_order_seq_cst)) return;
  wakeups_.fetch_add(1, std::memory_order_seq_cst);
  wakeups_.notify_one();
}

void LaunchQueue::offer(uint64_t sequence) {
  if (!environment::has_spare_processor()) return;
  const int64_t now = now_ns();
  const bool close = now - last_offer_ns_.exchange(now, std::memory_order_relaxed) < kCloseNs;
  const int row = close ? close_offers_.fetch_add(1, std::memory_order_relaxed) : 0;
  if (!close) close_offers_.store(0, std::memory_order_relaxed);
  if (row >= kCloseOffers || !sleeping_.load(std::memory_order_relaxed)) request(sequence);
}

bool LaunchQueue::lingers() const {
  return close_offers_.load(std::memory_order_relaxed) >= kCloseOffers &&
         now_ns() - last_offer_ns_.load(std::memory_order_relaxed) < kCloseNs;
}

uint64_t LaunchQueue::enqueue_task(double estimated_us, std::function<void()> task) {
  return enqueue(estimated_us, [&](Launch& slot) {
    slot.program = nullptr;
    slot.task = std::move(task);
  });
}

void LaunchQueue::run(const std::function<void()>& task) {
  uint64_t sequence = enqueue_task(0, task);
  wait(sequence);
  raise_reported_error();
}

bool LaunchQueue::done(uint64_t sequence) {
  if (completed_.load(std::memory_order_acquire) >= sequence) return true;
  request(enqueued_.load(std::memory_order_seq_cst));
  return false;
}

void LaunchQueue::wait(uint64_t sequence) {
  if (completed_.load(std::memory_order_acquire) >= sequence || running == this) return;
  GilRelease released;
  run_until(sequence);
}

bool LaunchQueue::wait_for(uint64_t sequence, std::chrono::milliseconds patience) {
  if (completed_.load(std::memory_order_acquire) >= sequence || running == this) return true;
  GilRelease released;
  run_until(sequence, patience);
  return completed_.load(std::memory_order_acquire) >= sequence;
}

void LaunchQueue::run_until(uint64_t sequence, std::optional<std::chrono::milliseconds> patience) {
  const auto finished = [&] { return completed_.load(std::memory_order_seq_cst) >= sequence; };
  while (!finished()) {
    if (acquire()) {
      running = this;
      while (!finished() && run_one()) {
      }
      running = nullptr;
      release();
      continue;
    }
    // Another thread drives the core: spin for as long as a small operator takes, then block. The worker leaves the
    // processor to it at once.
    for (int spin = 0; spin < kSpins && !is_worker && !finished(); ++spin) pause();
    if (finished()) return;
    std::unique_lock<std::mutex> lock(waiters_mutex_);
    waiters_.fetch_add(1, std::memory_order_seq_cst);
    const auto ready = [&] {
      // Said before looking: whoever completes the launch looks the other way round. Under the lock.
      awaited_.store(std::min(awaited_.load(), sequence), std::memory_order_seq_cst);
      return finished() || !driven_.load(std::memory_order_seq_cst);
    };
    bool in_time = true;
    if (patience.has_value()) {
      in_time = waiters_condition_.wait_for(lock, *patience, ready);
    } else {
      waiters_condition_.wait(lock, ready);
    }
    waiters_.fetch_sub(1, std::memory_order_seq_cst);
    if (!in_time) return;
  }
}

void LaunchQueue::release() {
  driven_.store(false, std::memory_order_seq_cst);
  if (waiters_.load(std::memory_order_seq_cst)) wake_waiters();
}

// Those that go on waiting say so again.
void LaunchQueue::wake_waiters() {
  {
    std::lock_guard<std::mutex> lock(waiters_mutex_);
    awaited_.store(kNothing, std::memory_order_relaxed);
  }
  waiters_condition_.notify_all();
}

bool LaunchQueue::run_one() {
  const uint64_t next = completed_.load(std::memory_order_relaxed) + 1;
  if (next > enqueued_.load(std::memory_order_seq_cst)) return false;
  execute(slots_[next % kSlots]);
  completed_.store(next, std::memory_order_seq_cst);
  if (next >= awaited_.load(std::memory_order_seq_cst)) wake_waiters();
  return true;
}

void LaunchQueue::execute(Launch& launch) {
  const bool in_graph = launch.program && launch.program->is_graph();
  try {
    if (launch.program) {
      launch.program->execute(device_, launch);
    } else if (launch.task) {
      auto task = std::move(launch.task);
      launch.task = nullptr;
      task();
    }
  } catch (const ProgramError& error) {
    report({error.status(), error.what(), launch.site, in_graph});
  } catch (const c10::Error& error) {
    report({NRT_FAILURE, error.what_without_backtrace(), launch.site, in_graph});
  } catch (const std::exception& error) {
    report({NRT_FAILURE, error.what(), launch.site, in_graph});
  }
  launch.program = nullptr;
}

void LaunchQueue::work() {
  is_worker = true;
  sleeping_.store(false, std::memory_order_seq_cst);
  for (;;) {
    const uint32_t ticket = wakeups_.load(std::memory_order_seq_cst);
    run_until(enqueued_.load(std::memory_order_seq_cst));
    bool more = false;
    for (int spin = 0; !more && (spin < kSpins || lingers()); ++spin) {
      pause();
      more = requested_.load(std::memory_order_relaxed) > completed_.load(std::memory_order_relaxed);
    }
    if (more) continue;
    release_host_threads();
    sleeping_.store(true, std::memory_order_seq_cst);
    if (requested_.load(std::memory_order_seq_cst) <= completed_.load(std::memory_order_seq_cst)) wakeups_.wait(ticket);
    sleeping_.store(false, std::memory_order_seq_cst);
  }
}

void LaunchQueue::synchronize() {
  drain();
  raise_reported_error();
}

void LaunchQueue::drain() { wait(last_enqueued()); }

void LaunchQueue::report(ReportedError error) {
  std::lock_guard<std::mutex> lock(error_mutex_);
  if (has_error_.load()) return;  // later failures mostly follow from the first
  error_ = std::move(error);
  has_error_.store(true, std::memory_order_release);
}

void LaunchQueue::raise_reported_error() {
  if (!has_error_.load(std::memory_order_acquire)) return;
  ReportedError error;
  {
    std::lock_guard<std::mutex> lock(error_mutex_);
    if (!has_error_.load()) return;
    error = std::move(error_);
    error_ = {};
    has_error_.store(false);
  }
  std::string message = error.message;
  if (std::string where = describe(error.site); !where.empty()) message += "\n  called from " + where;
  if (error.status == NRT_RESOURCE) TORCH_CHECK_WITH(OutOfMemoryError, false, message);
  if (error.in_graph) raise_graph_error(message);
  if (error.status == NRT_EXEC_OOB) TORCH_CHECK_INDEX(false, message);
  TORCH_CHECK(false, message);
}

}  // namespace neuron
