// SPDX-License-Identifier: Apache-2.0
#include <distributed/peers.h>

#include <algorithm>

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <distributed/transport.h>

namespace neuron::distributed {

std::string GroupName::of(int rank) const { return c10::str("rank ", global_ranks[static_cast<size_t>(rank)]); }

std::chrono::microseconds Peers::nap(Deadline deadline) {
  const auto left = std::chrono::duration_cast<std::chrono::microseconds>(deadline - Clock::now());
  return std::clamp(left, std::chrono::microseconds(1), kTick);
}

void Peers::check_usable() const {
  if (!aborted_) return;
  std::lock_guard<std::mutex> lock(mutex_);
  C10_THROW_ERROR(DistBackendError,
                  c10::str(name_.of(rank_), ": group '", name_.name, "' cannot be used any more: ", reason_));
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
    announce_failure(reason);
    aborted_ = true;
  }
  wake_all();
}

void Peers::close() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    announce_close();
    if (!aborted_) reason_ = "it was destroyed (destroy_process_group) in this process.";
    aborted_ = true;
  }
  wake_all();
}

std::string Peers::what(const Collective& call) const { return name_.of(rank_) + " in " + describe(call); }

void Peers::check_same(const Collective& call, int peer, const Collective& theirs) {
  if (theirs.matches(call)) return;
  fail(c10::str(what(call), ": ", name_.of(peer), " is in another collective at this point, ", describe(theirs),
                ", in group '", name_.name,
                "'. All ranks must call the same collectives with the same shapes and dtypes, in the same order."));
}

void Peers::check_size(const Collective& call, int peer, const Collective& theirs, size_t given, size_t expected) {
  if (given == expected) return;
  fail(c10::str(what(call), ": ", name_.of(peer), " gives ", given, " bytes in ", describe(theirs), ", but ", expected,
                " are expected. The shapes of the ranks do not fit together."));
}

std::string Peers::trouble_with(const std::vector<int>& ranks) {
  check_signals();
  if (aborted_) {
    std::lock_guard<std::mutex> lock(mutex_);
    return reason_;
  }
  for (const int r : ranks) {
    std::string trouble = trouble_of(r);
    if (!trouble.empty()) return trouble;
  }
  return "";
}

std::string Peers::absence_of(const std::vector<int>& ranks) const {
  std::string text = "it took longer than its timeout. Waiting for ";
  for (size_t i = 0; i < ranks.size(); ++i)
    text += c10::str(i > 0 ? "; " : "", name_.of(ranks[i]), standing_of(ranks[i]));
  return text + ".";
}

}  // namespace neuron::distributed
