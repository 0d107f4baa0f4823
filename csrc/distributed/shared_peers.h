// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <distributed/peers.h>
#include <distributed/shared_segment.h>

namespace neuron::distributed {

// Ranks that share memory: they read there what the others do, and sleep on bells in it.
class SharedPeers final : public Peers {
 public:
  SharedPeers(std::shared_ptr<SharedSegment> segment, GroupName name);

  SharedSegment& segment() { return *segment_; }

  // Marks this rank as in `call`; raises when the group was closed, aborted or has failed.
  void begin(const Collective& call);
  void end();

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

  // Sleeps until this rank's bell rings, unless `step()` is true, or for so long. True when it is.
  template <typename Step>
  bool rest(Bell RankControl::* bell, std::chrono::microseconds at_most, const Step& step) {
    Bell& mine = segment_->control(rank()).*bell;
    const uint32_t ticket = mine.rings.load(std::memory_order_seq_cst);
    mine.sleepers.fetch_add(1, std::memory_order_seq_cst);
    std::atomic_thread_fence(std::memory_order_seq_cst);
    const bool ready = step();
    if (!ready && !aborted()) mine.sleep(ticket, at_most);
    mine.sleepers.fetch_sub(1, std::memory_order_seq_cst);
    return ready;
  }

  // Rings one bell of everybody else.
  void ring(Bell RankControl::* bell);

  static void pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
  }

 protected:
  std::string trouble_of(int rank) override;
  std::string standing_of(int rank) const override;
  void announce_failure(const std::string& reason) override;
  void announce_close() override;
  void wake_all() override;

 private:
  static constexpr int kSpinsPerLook = 16;

  template <typename Step>
  bool sleep_once(Bell RankControl::* bell, Deadline deadline, const Step& step) {
    return rest(bell, nap(deadline), step) || step();
  }

  std::shared_ptr<SharedSegment> segment_;
  std::chrono::microseconds spin_;
};

}  // namespace neuron::distributed
