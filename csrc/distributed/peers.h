// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <mutex>
#include <string>
#include <vector>

#include <distributed/collective.h>

namespace neuron::distributed {

// The name of a group and of its ranks, for errors.
struct GroupName {
  std::string name;
  std::vector<int64_t> global_ranks;  // by rank in the group

  // "rank 3", by global rank
  std::string of(int rank) const;
};

// The other ranks of a group: whether they are still there, and what they did last.
class Peers {
 public:
  Peers(int rank, int size, GroupName name) : rank_(rank), size_(size), name_(std::move(name)) {}
  virtual ~Peers() = default;
  Peers(const Peers&) = delete;
  Peers& operator=(const Peers&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  const GroupName& name() const { return name_; }

  // Raises when the group was closed, aborted or has failed.
  void check_usable() const;
  // Tells the others, and raises.
  [[noreturn]] void fail(const std::string& reason);
  void abort(const std::string& reason);
  void close();

  // "rank 0 in all_reduce #7 (sum) of float32 [2, 3]"
  std::string what(const Collective& call) const;
  // Raise, and tell the others, when what `peer` gives does not belong to `call`.
  void check_same(const Collective& call, int peer, const Collective& theirs);
  void check_size(const Collective& call, int peer, const Collective& theirs, size_t given, size_t expected);

  // What is wrong with one of these ranks, or with this one; "" if nothing is.
  std::string trouble_with(const std::vector<int>& ranks);
  // "it took longer than its timeout. Waiting for rank 1, which is in all_gather #4."
  std::string absence_of(const std::vector<int>& ranks) const;

 protected:
  // How long a rank sleeps at most before it looks after the others.
  static constexpr std::chrono::microseconds kTick{50000};
  // kTick, or what is left of the time.
  static std::chrono::microseconds nap(Deadline deadline);

  // What is wrong with a rank, as "rank 1 died."; "" if nothing is.
  virtual std::string trouble_of(int rank) = 0;
  // ", which is in all_gather #4"
  virtual std::string standing_of(int rank) const = 0;
  // Lets the others know that this rank has failed, or left in peace.
  virtual void announce_failure(const std::string& reason) = 0;
  virtual void announce_close() = 0;
  // Whoever sleeps here or there looks up.
  virtual void wake_all() = 0;
  bool aborted() const { return aborted_; }

 private:
  int rank_;
  int size_;
  GroupName name_;
  std::atomic<bool> aborted_{false};
  mutable std::mutex mutex_;
  std::string reason_;  // of the abort, or of the first failure here
};

}  // namespace neuron::distributed
