// SPDX-License-Identifier: Apache-2.0
#include "shared_loop.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include <ATen/Parallel.h>

namespace neuron {
namespace {

// How often a thread looks again before it sleeps: for some 50 to 100 microseconds.
constexpr int kSpins = 2000;
// A thread's share of what is left is taken in so many pieces.
constexpr int64_t kShares = 4;

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// Returns once `value` is no longer `old`.
template <typename T>
void await_change(const std::atomic<T>& value, T old) {
  for (int i = 0; i < kSpins; ++i) {
    if (value.load(std::memory_order_acquire) != old) return;
    pause();
  }
  value.wait(old, std::memory_order_acquire);
}

struct Loop {
  int64_t count, piece, shares;
  const std::function<void(int64_t, int64_t)>& function;
  std::atomic<int64_t> helpers_wanted;
  std::atomic<int64_t> next{0};
  std::atomic<int64_t> done{0};  // elements

  bool has_pieces() const { return next.load(std::memory_order_relaxed) < count; }

  // Large pieces are read faster, small ones end together: they become smaller with what is left.
  bool claim(int64_t* begin, int64_t* end) {
    *begin = next.load(std::memory_order_relaxed);
    do {
      if (*begin >= count) return false;
      *end = std::min(count, *begin + std::max(piece, (count - *begin) / shares));
    } while (!next.compare_exchange_weak(*begin, *end, std::memory_order_relaxed));
    return true;
  }

  void work() {
    for (int64_t begin, end; claim(&begin, &end);) {
      function(begin, end);
      // Whoever waits may free what `function` refers to, but not the loop, which this thread holds.
      if (done.fetch_add(end - begin, std::memory_order_acq_rel) + end - begin == count) done.notify_all();
    }
  }

  void await_done() {
    for (int64_t so_far = done.load(std::memory_order_acquire); so_far < count; so_far = done.load()) {
      await_change(done, so_far);
    }
  }
};

class Helpers {
 public:
  explicit Helpers(int64_t count) {
    for (int64_t i = 0; i < count; ++i) std::thread([this] { help(); }).detach();
  }

  void run(const std::shared_ptr<Loop>& loop) {
    {
      const std::lock_guard lock(mutex_);
      loops_.push_back(loop);
    }
    announcements_.fetch_add(1, std::memory_order_release);
    announcements_.notify_one();
    loop->work();
    {
      const std::lock_guard lock(mutex_);
      loops_.erase(std::find(loops_.begin(), loops_.end(), loop));
    }
    loop->await_done();
  }

 private:
  std::shared_ptr<Loop> find_loop() {
    const std::lock_guard lock(mutex_);
    for (const auto& loop : loops_) {
      if (loop->has_pieces() && loop->helpers_wanted.fetch_sub(1, std::memory_order_relaxed) > 0) return loop;
    }
    return nullptr;
  }

  void help() {
    for (;;) {
      const int32_t seen = announcements_.load(std::memory_order_acquire);
      if (const auto loop = find_loop()) {
        // One wakes the next, so that the caller need not wake all.
        if (loop->has_pieces()) announcements_.notify_one();
        loop->work();
      } else {
        await_change(announcements_, seen);
      }
    }
  }

  std::mutex mutex_;
  std::vector<std::shared_ptr<Loop>> loops_;
  std::atomic<int32_t> announcements_{0};
};

}  // namespace

void shared_loop(int64_t count, int64_t piece, const std::function<void(int64_t, int64_t)>& function) {
  const int64_t helpers_wanted = at::get_num_threads() - 1;
  if (count <= piece || helpers_wanted < 1) {
    if (count > 0) function(0, count);
    return;
  }
  // Lives as long as the process: its threads never end.
  static Helpers* helpers = new Helpers(helpers_wanted);
  helpers->run(std::shared_ptr<Loop>(new Loop{count, piece, kShares * (helpers_wanted + 1), function, helpers_wanted}));
}

}  // namespace neuron
