// SPDX-License-Identifier: Apache-2.0
#include <distributed/peers.h>

#include <algorithm>
#include <cstring>
#include <thread>

#include <c10/util/Exception.h>

#include <distributed/transport.h>

namespace neuron::distributed {
namespace {

// Worth spinning for while every rank has a processor of its own; a sleep and a wake-up cost more.
constexpr std::chrono::microseconds kLongSpin{100};
constexpr std::chrono::microseconds kShortSpin{2};
constexpr uint64_t kKindShift = 56;

}  // namespace

std::string GroupName::of(int rank) const { return c10::str("rank ", global_ranks[static_cast<size_t>(rank)]); }

Peers::Peers(std::shared_ptr<SharedSegment> segment, GroupName name)
    : segment_(std::move(segment)),
      name_(std::move(name)),
      spin_(static_cast<unsigned>(segment_->size()) <= std::thread::hardware_concurrency() ? kLongSpin : kShortSpin) {}

std::chrono::microseconds Peers::nap(Deadline deadline) {
  const auto left = std::chrono::duration_cast<std::chrono::microseconds>(deadline - Clock::now());
  return std::clamp(left, std::chrono::microseconds(1), kTick);
}

void Peers::check_usable() const {
  if (!aborted_) return;
  std::lock_guard<std::mutex> lock(mutex_);
  C10_THROW_ERROR(DistBackendError, c10::str(name_.of(segment_->rank()), ": group '", name_.name,
                                             "' cannot be used any more: ", reason_));
}

void Peers::begin(const Collective& call) {
  check_usable();
  RankControl& control = segment_->control(segment_->rank());
  control.current.store((static_cast<uint64_t>(call.kind) << kKindShift) | call.sequence, std::memory_order_relaxed);
  control.busy.store(true, std::memory_order_relaxed);
}

void Peers::end() { segment_->control(segment_->rank()).busy.store(false, std::memory_order_relaxed); }

void Peers::ring(Bell RankControl::* bell) {
  for (int r = 0; r < segment_->size(); ++r) {
    if (r != segment_->rank()) (segment_->control(r).*bell).ring();
  }
}

void Peers::ring_all() {
  for (int r = 0; r < segment_->size(); ++r) {
    segment_->control(r).collectives.ring();
    segment_->control(r).messages.ring();
  }
}

void Peers::fail(const std::string& reason) {
  abort(reason);
  C10_THROW_ERROR(DistBackendError, reason);
}

void Peers::abort(const std::string& reason) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (aborted_) return;
    reason_ = reason;
    RankControl& control = segment_->control(segment_->rank());
    if (control.state == RankState::Open) {
      std::strncpy(control.message, reason.c_str(), sizeof(control.message) - 1);
      control.state.store(RankState::Failed, std::memory_order_release);
    }
    aborted_ = true;
  }
  ring_all();
}

void Peers::close() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    RankState open = RankState::Open;
    segment_->control(segment_->rank()).state.compare_exchange_strong(open, RankState::Closed);
    if (!aborted_) reason_ = "it was destroyed (destroy_process_group) in this process.";
    aborted_ = true;
  }
  ring_all();
}

std::string Peers::trouble_with(const std::vector<int>& ranks) {
  check_signals();
  if (aborted_) {
    std::lock_guard<std::mutex> lock(mutex_);
    return reason_;
  }
  for (const int r : ranks) {
    RankControl& control = segment_->control(r);
    switch (control.state.load(std::memory_order_acquire)) {
      case RankState::Failed:
        return c10::str(name_.of(r), " failed: ", std::string(control.message));
      case RankState::Closed:
        return c10::str(name_.of(r), " has left: it destroyed the group.");
      case RankState::Open:
        break;
    }
    if (!segment_->alive(r)) return c10::str(name_.of(r), " (process ", control.process.load(), ") died.");
  }
  return "";
}

std::string Peers::absence_of(const std::vector<int>& ranks) const {
  std::string text = "it took longer than its timeout. Waiting for ";
  for (size_t i = 0; i < ranks.size(); ++i) {
    const RankControl& control = segment_->control(ranks[i]);
    const uint64_t current = control.current.load(std::memory_order_relaxed);
    const auto kind = static_cast<Kind>(current >> kKindShift);
    const uint64_t sequence = current & ((uint64_t{1} << kKindShift) - 1);
    text += c10::str(i > 0 ? "; " : "", name_.of(ranks[i]));
    if (control.busy.load(std::memory_order_relaxed)) {
      text += c10::str(", which is in ", name_of(kind), " #", sequence);
    } else if (control.posted.load(std::memory_order_relaxed) == 0) {
      text += ", which has not called any collective of the group";
    } else {
      text += c10::str(", whose last collective of the group was ", name_of(kind), " #", sequence);
    }
  }
  return text + ".";
}

}  // namespace neuron::distributed
