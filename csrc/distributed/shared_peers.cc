// SPDX-License-Identifier: Apache-2.0
#include <distributed/shared_peers.h>

#include <cstring>
#include <thread>
#include <utility>

#include <c10/util/StringUtil.h>

namespace neuron::distributed {
namespace {

// Worth spinning for while every rank has a processor of its own; a sleep and a wake-up cost more.
constexpr std::chrono::microseconds kLongSpin{100};
constexpr std::chrono::microseconds kShortSpin{2};
constexpr uint64_t kKindShift = 56;

}  // namespace

SharedPeers::SharedPeers(std::shared_ptr<SharedSegment> segment, GroupName name)
    : Peers(segment->rank(), segment->size(), std::move(name)),
      segment_(std::move(segment)),
      spin_(static_cast<unsigned>(size()) <= std::thread::hardware_concurrency() ? kLongSpin : kShortSpin) {}

void SharedPeers::begin(const Collective& call) {
  check_usable();
  RankControl& control = segment_->control(rank());
  control.current.store((static_cast<uint64_t>(call.kind) << kKindShift) | call.sequence, std::memory_order_relaxed);
  control.busy.store(true, std::memory_order_relaxed);
}

void SharedPeers::end() { segment_->control(rank()).busy.store(false, std::memory_order_relaxed); }

void SharedPeers::ring(Bell RankControl::* bell) {
  for (int r = 0; r < size(); ++r) {
    if (r != rank()) (segment_->control(r).*bell).ring();
  }
}

void SharedPeers::wake_all() {
  for (int r = 0; r < size(); ++r) {
    segment_->control(r).collectives.ring();
    segment_->control(r).messages.ring();
  }
}

void SharedPeers::announce_failure(const std::string& reason) {
  RankControl& control = segment_->control(rank());
  if (control.state != RankState::Open) return;
  std::strncpy(control.message, reason.c_str(), sizeof(control.message) - 1);
  control.state.store(RankState::Failed, std::memory_order_release);
}

void SharedPeers::announce_close() {
  RankState open = RankState::Open;
  segment_->control(rank()).state.compare_exchange_strong(open, RankState::Closed);
}

std::string SharedPeers::trouble_of(int rank) {
  RankControl& control = segment_->control(rank);
  switch (control.state.load(std::memory_order_acquire)) {
    case RankState::Failed:
      return c10::str(name().of(rank), " failed: ", std::string(control.message));
    case RankState::Closed:
      return c10::str(name().of(rank), " has left: it destroyed the group.");
    case RankState::Open:
      break;
  }
  if (segment_->alive(rank)) return "";
  return c10::str(name().of(rank), " (process ", control.process.load(), ") died.");
}

std::string SharedPeers::standing_of(int rank) const {
  const RankControl& control = segment_->control(rank);
  const uint64_t current = control.current.load(std::memory_order_relaxed);
  const auto kind = static_cast<Kind>(current >> kKindShift);
  const uint64_t sequence = current & ((uint64_t{1} << kKindShift) - 1);
  if (control.busy.load(std::memory_order_relaxed)) return c10::str(", which is in ", name_of(kind), " #", sequence);
  if (control.posted.load(std::memory_order_relaxed) == 0) return ", which has not called any collective of the group";
  return c10::str(", whose last collective of the group was ", name_of(kind), " #", sequence);
}

}  // namespace neuron::distributed
