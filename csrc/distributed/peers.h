// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <distributed/collective.h>
#include <distributed/shared_segment.h>

namespace neuron::distributed {

// The name of a group and of its ranks, for errors.
struct GroupName {
  std::string name;
  std::vector<int64_t> global_ranks;  // by rank in the group

  // "rank 3", by global rank
  std::string of(int rank) const;
};

// The other ranks of a group that shares memory: whether they are still there, what they do, and
// waiting for them.
class Peers {
 public:
  Peers(std::shared_ptr<SharedSegment> segment, GroupName name);

  SharedSegment& segment() { return *segment_; }
  const GroupName& name() const { return name_; }

  // Marks this rank as in `call`; raises when the group was closed, aborted or has failed.
  void begin(const Collective& call);
  void end();
  void check_usable() const;

  // Waits until `step()` is true. It is called again after each ring of `bell` and must not block.
  // `missing()` lists the ranks that it waits for. Raises DistBackendError when one of them failed,
  // left or died, when the group is aborted, and at the deadline; `what` begins the text.
  template <typename Step, typename Missing, typename What>
  void await(Bell RankControl::* bell, Deadline deadline, const Step& step, const Missing& missing, const What& what) {
    const auto spin_end = Clock::now() + spin_;
    do {
      for (int i = 0; i < kSpinsPerLook; ++i) {
        if (step()) return;
        pause();
      }
    } while (Clock::now() < spin_end);
    while (!sleep_once(bell, deadline, step)) {
      const std::vector<int> ranks = missing();
      std::string trouble = trouble_with(ranks);
      if (trouble.empty() && Clock::now() >= deadline) trouble = absence_of(ranks);
      // What they posted before they left counts.
      if (trouble.empty() || step()) {
        if (trouble.empty()) continue;
        return;
      }
      fail(what() + ": " + trouble);
    }
  }

  // Tells the others, and raises.
  [[noreturn]] void fail(const std::string& reason);
  void close();
  void abort(const std::string& reason);
  // Rings one bell of everybody else.
  void ring(Bell RankControl::* bell);
  // Rings every bell of everybody: whoever sleeps looks up.
  void ring_all();

  // What is wrong with one of these ranks, or with this one; "" if nothing is.
  std::string trouble_with(const std::vector<int>& ranks);
  // "rank 1 has not come within 2000 ms: it is in all_gather #4"
  std::string absence_of(const std::vector<int>& ranks) const;

  static void pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
  }

 private:
  static constexpr int kSpinsPerLook = 16;
  // How long a rank sleeps at most before it looks after the others.
  static constexpr std::chrono::microseconds kTick{50000};

  template <typename Step>
  bool sleep_once(Bell RankControl::* bell, Deadline deadline, const Step& step) {
    Bell& mine = segment_->control(segment_->rank()).*bell;
    const uint32_t ticket = mine.rings.load(std::memory_order_seq_cst);
    mine.sleepers.fetch_add(1, std::memory_order_seq_cst);
    std::atomic_thread_fence(std::memory_order_seq_cst);
    const bool ready = step();
    if (!ready && !aborted_) mine.sleep(ticket, nap(deadline));
    mine.sleepers.fetch_sub(1, std::memory_order_seq_cst);
    return ready || step();
  }
  static std::chrono::microseconds nap(Deadline deadline);

  std::shared_ptr<SharedSegment> segment_;
  GroupName name_;
  std::chrono::microseconds spin_;
  std::atomic<bool> aborted_{false};
  mutable std::mutex mutex_;
  std::string reason_;  // of the abort, or of the first failure here
};

}  // namespace neuron::distributed
