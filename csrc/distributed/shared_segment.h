// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <distributed/collective.h>

namespace neuron::distributed {

// A word that a rank sleeps on and others ring. One that waits says so first, so that nobody makes
// a system call for one that does not.
struct Bell {
  std::atomic<uint32_t> rings{0};
  std::atomic<uint32_t> sleepers{0};

  void ring();
  // Sleeps until a ring after `ticket` (a value of `rings`), or for so long.
  void sleep(uint32_t ticket, std::chrono::microseconds at_most);
};

enum class RankState : uint32_t { Open, Closed, Failed };

// What a rank tells the others about itself.
struct alignas(64) RankControl {
  // Rounds that this rank has put into its slots, over all collectives. Two slots: round i lies in
  // slot i % 2, and is written when everybody has consumed round i - 2.
  std::atomic<uint64_t> posted{0};
  alignas(64) Bell collectives;
  alignas(64) Bell messages;
  alignas(64) std::atomic<RankState> state{RankState::Open};
  // The collective it is in, or was in last: kind in the upper byte, sequence number below. For
  // the texts of errors.
  std::atomic<uint64_t> current{0};
  std::atomic<bool> busy{false};
  std::atomic<int32_t> process{0};
  char message[512] = "";  // why it failed; written before `state`
};

// What comes before the bytes of a round.
struct SlotHeader {
  Collective call;
  uint64_t round;   // of this collective, from 0
  uint64_t rounds;  // that this rank will post in all
};

// Bytes on their way from one rank to another, in a ring.
struct MessageRing {
  alignas(64) std::atomic<uint64_t> written{0};
  alignas(64) std::atomic<uint64_t> read{0};
};

// Memory that all ranks of a group have mapped. Nothing of it has a name in a file system, so
// nothing is left behind, and a rank's death shows: the kernel drops its lock.
class SharedSegment {
 public:
  static constexpr size_t kSlotBytes = size_t{512} << 10;
  static constexpr size_t kSlots = 2;

  // Null when some rank cannot map the memory of rank 0: they are on several hosts. All ranks
  // get the same answer. Raises, naming the ranks that did not come, after `timeout`.
  static std::unique_ptr<SharedSegment> attach(c10d::Store& store, int rank, int size,
                                               std::chrono::milliseconds timeout);
  ~SharedSegment();
  SharedSegment(const SharedSegment&) = delete;
  SharedSegment& operator=(const SharedSegment&) = delete;

  RankControl& control(int rank) const;
  // Rounds of `writer` that `reader` is done with.
  std::atomic<uint64_t>& consumed(int reader, int writer) const;
  SlotHeader& slot_header(int rank, uint64_t round) const;
  // Bytes of the part for each rank, of the round that lies in the slot.
  uint64_t* slot_parts(int rank, uint64_t round) const;
  char* slot_data(int rank, uint64_t round) const;
  MessageRing& ring(int from, int to) const;
  char* ring_data(int from, int to) const;
  size_t ring_bytes() const { return ring_bytes_; }

  // Asks the kernel. Not cheap.
  bool alive(int rank) const;

  int rank() const { return rank_; }
  int size() const { return size_; }

 private:
  SharedSegment(int file, void* memory, int rank, int size);
  static size_t total_bytes(int size);
  void lay_out();

  int file_;
  char* memory_;
  int rank_;
  int size_;
  size_t ring_bytes_ = 0;
  size_t consumed_offset_ = 0;
  size_t slots_offset_ = 0;
  size_t slot_stride_ = 0;
  size_t rings_offset_ = 0;
  size_t ring_stride_ = 0;
  size_t total_bytes_ = 0;
};

}  // namespace neuron::distributed
