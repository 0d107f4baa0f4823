// SPDX-License-Identifier: Apache-2.0
#include "shared_loop.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include <ATen/Parallel.h>

#include "rounding.h"

namespace neuron {
namespace {

// How often a thread looks again before it sleeps or goes: for some 50 to 100 microseconds.
constexpr int kLooks = 2000, kLooksOfHelper = 1000;
// So many looks apart it lets another thread have the processor, which may be the one that it waits for.
constexpr int kLooksBetweenYields = 16;
// A thread's share of what is left is taken in so many pieces.
constexpr int64_t kShares = 4;

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// Whether `value` is no longer `old`, which is awaited for so many looks.
bool has_changed(const std::atomic<int64_t>& value, int64_t old, int looks) {
  for (int i = 0; i < looks; ++i) {
    if (value.load(std::memory_order_acquire) != old) return true;
    if (i % kLooksBetweenYields == kLooksBetweenYields - 1) {
      std::this_thread::yield();
    } else {
      pause();
    }
  }
  return false;
}

class Loop {
 public:
  Loop(int64_t count, int64_t piece, int64_t threads, const std::function<void(int64_t, int64_t)>& function)
      : count_(count), piece_(piece), shares_(kShares * threads), function_(function), helpers_wanted_(threads - 1) {}

  // Whether there is work left and room for one more helper, who counts from now on.
  bool takes_helper() {
    return next_.load(std::memory_order_relaxed) < count_ &&
           helpers_wanted_.fetch_sub(1, std::memory_order_relaxed) > 0;
  }

  // Whoever waits may free what `function` refers to, but not the loop, which this thread holds.
  void work() {
    for (int64_t begin, end; claim(&begin, &end);) {
      try {
        function_(begin, end);
      } catch (...) {
        const std::lock_guard lock(mutex_);
        error_ = std::current_exception();
      }
      if (done_.fetch_add(end - begin, std::memory_order_acq_rel) + end - begin == count_) done_.notify_all();
    }
  }

  void finish() {
    work();
    for (int64_t done = done_.load(std::memory_order_acquire); done < count_; done = done_.load()) {
      if (!has_changed(done_, done, kLooks)) done_.wait(done, std::memory_order_acquire);
    }
    if (error_) std::rethrow_exception(error_);
  }

 private:
  // Large pieces are read faster, small ones end together: they become smaller with what is left.
  bool claim(int64_t* begin, int64_t* end) {
    *begin = next_.load(std::memory_order_relaxed);
    do {
      if (*begin >= count_) return false;
      *end = std::min(count_, *begin + std::max(piece_, (count_ - *begin) / shares_));
    } while (!next_.compare_exchange_weak(*begin, *end, std::memory_order_relaxed));
    return true;
  }

  const int64_t count_, piece_, shares_;
  const std::function<void(int64_t, int64_t)>& function_;
  std::atomic<int64_t> helpers_wanted_;
  std::atomic<int64_t> next_{0};
  std::atomic<int64_t> done_{0};  // elements
  std::mutex mutex_;
  std::exception_ptr error_;
};

// Threads of XLA's that help. One stays a while after a loop, since the next kernel's is not far.
class Helpers {
 public:
  void run(const neuroncore_kernel_call_t& call, const std::shared_ptr<Loop>& loop, int64_t wanted) {
    {
      const std::lock_guard lock(mutex_);
      loops_.push_back(loop);
    }
    announcements_.fetch_add(1, std::memory_order_release);
    for (int64_t present = present_.load(std::memory_order_relaxed); present < wanted; ++present) {
      present_.fetch_add(1, std::memory_order_relaxed);
      if (call.schedule(call.pool, [](void* helpers) { static_cast<Helpers*>(helpers)->help(); }, this)) continue;
      present_.fetch_sub(1, std::memory_order_relaxed);
      break;
    }
    loop->work();
    {
      const std::lock_guard lock(mutex_);
      loops_.erase(std::find(loops_.begin(), loops_.end(), loop));
    }
    loop->finish();
  }

 private:
  std::shared_ptr<Loop> find_loop() {
    const std::lock_guard lock(mutex_);
    for (const auto& loop : loops_) {
      if (loop->takes_helper()) return loop;
    }
    return nullptr;
  }

  void help() {
    for (;;) {
      const int64_t seen = announcements_.load(std::memory_order_acquire);
      if (const auto loop = find_loop()) {
        loop->work();
      } else if (!has_changed(announcements_, seen, kLooksOfHelper)) {
        break;
      }
    }
    present_.fetch_sub(1, std::memory_order_relaxed);
  }

  std::mutex mutex_;
  std::vector<std::shared_ptr<Loop>> loops_;
  std::atomic<int64_t> announcements_{0};
  std::atomic<int64_t> present_{0};  // or on their way
};

thread_local const neuroncore_kernel_call_t* current_call = nullptr;

}  // namespace

LoopsOfCall::LoopsOfCall(const neuroncore_kernel_call_t& call) : outer_(current_call) { current_call = &call; }
LoopsOfCall::~LoopsOfCall() { current_call = outer_; }

void shared_loop(int64_t count, int64_t piece, const std::function<void(int64_t, int64_t)>& function) {
  const neuroncore_kernel_call_t* call = current_call;
  const int64_t threads = std::min<int64_t>(at::get_num_threads(), divide_up(count, piece));
  if (threads <= 1) {
    if (count > 0) function(0, count);
  } else if (call == nullptr || call->schedule == nullptr) {
    at::parallel_for(0, count, piece, function);
  } else {
    // Threads may still help when the process ends: never destroyed.
    static Helpers& helpers = *new Helpers;
    helpers.run(*call, std::make_shared<Loop>(count, piece, threads, function), threads - 1);
  }
}

}  // namespace neuron
