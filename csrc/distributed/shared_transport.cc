// SPDX-License-Identifier: Apache-2.0
#include <distributed/shared_transport.h>

#include <algorithm>
#include <cstring>

#include <c10/util/Exception.h>

#include <distributed/reduction.h>

namespace neuron::distributed {
namespace {

constexpr size_t kLine = 64;
// Up to this many bytes everybody reduces everything: one round of waiting instead of two.
constexpr size_t kOneRoundBytes = size_t{32} << 10;

constexpr size_t round_down(size_t bytes) { return bytes / kLine * kLine; }
constexpr size_t divide_up(size_t a, size_t b) { return (a + b - 1) / b; }

// The counters of this rank while it is in a collective, and the checks that all collectives share.
class Progress {
 public:
  Progress(SharedPeers& peers, const Collective& call, Deadline deadline)
      : peers_(peers), segment_(peers.segment()), call_(call), deadline_(deadline) {
    peers_.begin(call);
  }
  ~Progress() { peers_.end(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // Rounds that this rank has posted so far, over all collectives.
  uint64_t posted() const { return segment_.control(segment_.rank()).posted.load(std::memory_order_relaxed); }
  bool slot_free(int reader) const {
    return posted() - segment_.consumed(reader, segment_.rank()).load(std::memory_order_acquire) <
           SharedSegment::kSlots;
  }
  bool slot_free() const {
    for (int r = 0; r < segment_.size(); ++r) {
      if (r != segment_.rank() && !slot_free(r)) return false;
    }
    return true;
  }
  void post(uint64_t round, uint64_t rounds) {
    segment_.slot_header(segment_.rank(), posted()) = {call_, round, rounds};
    segment_.control(segment_.rank()).posted.store(posted() + 1, std::memory_order_release);
    peers_.ring(&RankControl::collectives);
  }

  uint64_t consumed(int writer) const {
    return segment_.consumed(segment_.rank(), writer).load(std::memory_order_relaxed);
  }
  bool has_posted(int writer) const {
    return segment_.control(writer).posted.load(std::memory_order_acquire) > consumed(writer);
  }
  const SlotHeader& header(int writer) const { return segment_.slot_header(writer, consumed(writer)); }
  char* data(int writer) const { return segment_.slot_data(writer, consumed(writer)); }
  void consume(int writer) {
    segment_.consumed(segment_.rank(), writer).store(consumed(writer) + 1, std::memory_order_release);
    segment_.control(writer).collectives.ring();
  }

  // The round that `writer` has posted must be one of the same collective.
  void check(int writer) { peers_.check_same(call_, writer, header(writer).call); }
  void check_size(int writer, size_t given, size_t expected) {
    peers_.check_size(call_, writer, header(writer).call, given, expected);
  }

  template <typename Step, typename Missing>
  void await(const Step& step, const Missing& missing) {
    peers_.await(&RankControl::collectives, deadline_, step, missing,
                 [&] { return c10::str(peers_.what(call_), " of group '", peers_.name().name, "'"); });
  }

  SharedSegment& segment() { return segment_; }

 private:
  SharedPeers& peers_;
  SharedSegment& segment_;
  const Collective& call_;
  Deadline deadline_;
};

}  // namespace

// Moves bytes from each rank to each other, as far as slots are free and filled.
class SharedTransport::Exchange {
 public:
  Exchange(Progress& progress, c10::ArrayRef<SendBytes> to, c10::ArrayRef<ReceiveBytes> from)
      : progress_(progress),
        segment_(progress.segment()),
        to_(to),
        from_(from),
        section_(to.size() == 1 ? SharedSegment::kSlotBytes : round_down(SharedSegment::kSlotBytes / to.size())),
        received_(from.size(), 0),
        expected_(from.size(), 1) {
    size_t longest = 0;
    for (const SendBytes& part : to) longest = std::max(longest, part.size);
    rounds_ = std::max<uint64_t>(1, divide_up(longest, section_));
    expected_[static_cast<size_t>(segment_.rank())] = 0;
  }

  void run() {
    copy_own();
    progress_.await([this] { return step(); }, [this] { return missing(); });
  }

 private:
  const SendBytes& part_for(size_t rank) const { return to_.size() == 1 ? to_[0] : to_[rank]; }

  void copy_own() {
    const auto me = static_cast<size_t>(segment_.rank());
    const SendBytes& part = part_for(me);
    // What the root of a broadcast has is in place; others have nothing for themselves.
    if (!from_[me].wanted || from_[me].size == 0 || from_[me].data == part.data) return;
    std::memcpy(from_[me].data, part.data, std::min(part.size, from_[me].size));
  }

  // True when everything is through.
  bool step() {
    bool moved = true;
    while (moved) {
      moved = false;
      if (posted_ < rounds_ && progress_.slot_free()) {
        fill();
        moved = true;
      }
      for (size_t r = 0; r < from_.size(); ++r) {
        if (received_[r] == expected_[r] || !progress_.has_posted(static_cast<int>(r))) continue;
        take(static_cast<int>(r));
        moved = true;
      }
    }
    return posted_ == rounds_ && received_ == expected_;
  }

  void fill() {
    const int me = segment_.rank();
    const uint64_t round = progress_.posted();
    char* data = segment_.slot_data(me, round);
    const size_t start = posted_ * section_;
    if (posted_ == 0) {
      for (size_t r = 0; r < from_.size(); ++r) segment_.slot_parts(me, round)[r] = part_for(r).size;
    }
    for (size_t p = 0; p < to_.size(); ++p) {
      const bool own = to_.size() > 1 && p == static_cast<size_t>(me);
      if (own || to_[p].size <= start) continue;
      std::memcpy(data + p * section_, to_[p].data + start, std::min(section_, to_[p].size - start));
    }
    progress_.post(posted_++, rounds_);
  }

  void take(int writer) {
    const auto w = static_cast<size_t>(writer);
    const auto me = static_cast<size_t>(segment_.rank());
    const ReceiveBytes& place = from_[w];
    if (received_[w] == 0) {
      progress_.check(writer);
      expected_[w] = progress_.header(writer).rounds;
      const uint64_t sent = segment_.slot_parts(writer, progress_.consumed(writer))[me];
      if (place.wanted) progress_.check_size(writer, sent, place.size);
    }
    const size_t start = received_[w] * section_;
    if (place.size > start) {
      const char* data = progress_.data(writer) + (to_.size() == 1 ? 0 : me * section_);
      std::memcpy(place.data + start, data, std::min(section_, place.size - start));
    }
    ++received_[w];
    progress_.consume(writer);
  }

  std::vector<int> missing() const {
    std::vector<int> ranks;
    for (size_t r = 0; r < from_.size(); ++r) {
      const int rank = static_cast<int>(r);
      const bool waits_for_slot = posted_ < rounds_ && rank != segment_.rank() && !progress_.slot_free(rank);
      if (received_[r] != expected_[r] || waits_for_slot) ranks.push_back(rank);
    }
    return ranks;
  }

  Progress& progress_;
  SharedSegment& segment_;
  c10::ArrayRef<SendBytes> to_;
  c10::ArrayRef<ReceiveBytes> from_;
  size_t section_;  // bytes of a slot for one rank; the same on all, because they all agree on the kind
  uint64_t rounds_ = 1;
  uint64_t posted_ = 0;
  std::vector<uint64_t> received_;
  std::vector<uint64_t> expected_;
};

// Rounds in which everybody waits for everybody.
class SharedTransport::Rounds {
 public:
  Rounds(Progress& progress, uint64_t rounds) : progress_(progress), segment_(progress.segment()), rounds_(rounds) {}

  // `fill(data)` writes this rank's slot; `use(slots)` reads those of all ranks, of which this rank's
  // own one is given too.
  template <typename Fill, typename Use>
  void round(const Fill& fill, const Use& use) {
    const int me = segment_.rank();
    progress_.await([&] { return progress_.slot_free(); },
                    [&] { return ranks_that([&](int r) { return !progress_.slot_free(r); }); });
    char* own = segment_.slot_data(me, progress_.posted());
    fill(own);
    progress_.post(round_++, rounds_);
    const auto absent = [&](int r) { return !progress_.has_posted(r); };
    progress_.await(
        [&] {
          for (int r = 0; r < segment_.size(); ++r) {
            if (r != me && absent(r)) return false;
          }
          return true;
        },
        [&] { return ranks_that(absent); });
    slots_.clear();
    for (int r = 0; r < segment_.size(); ++r) {
      if (r != me) progress_.check(r);
      slots_.push_back(r == me ? own : progress_.data(r));
    }
    use(slots_);
    for (int r = 0; r < segment_.size(); ++r) {
      if (r != me) progress_.consume(r);
    }
  }

 private:
  template <typename Predicate>
  std::vector<int> ranks_that(const Predicate& predicate) const {
    std::vector<int> ranks;
    for (int r = 0; r < segment_.size(); ++r) {
      if (r != segment_.rank() && predicate(r)) ranks.push_back(r);
    }
    return ranks;
  }

  Progress& progress_;
  SharedSegment& segment_;
  uint64_t rounds_;
  uint64_t round_ = 0;
  std::vector<const char*> slots_;
};

SharedTransport::SharedTransport(std::shared_ptr<SharedSegment> segment, GroupName name)
    : Transport(segment->rank(), segment->size()),
      peers_(std::move(segment), std::move(name)),
      link_(peers_),
      messages_(link_) {}

void SharedTransport::close() {
  messages_.close();
  peers_.close();
}

void SharedTransport::exchange(const Collective& call, Deadline deadline, c10::ArrayRef<SendBytes> to,
                               c10::ArrayRef<ReceiveBytes> from) {
  Progress progress(peers_, call, deadline);
  Exchange(progress, to, from).run();
}

void SharedTransport::all_reduce(const Collective& call, Deadline deadline, const char* in, char* out) {
  Progress progress(peers_, call, deadline);
  const auto ranks = static_cast<size_t>(size());
  const auto me = static_cast<size_t>(rank());
  const size_t item = c10::elementSize(call.dtype);
  const size_t bytes = static_cast<size_t>(call.elements) * item;
  std::vector<const void*> sources(ranks);
  if (bytes * (ranks - 1) <= kOneRoundBytes) {
    Rounds(progress, 1)
        .round([&](char* slot) { std::memcpy(slot, in, bytes); },
               [&](const std::vector<const char*>& slots) {
                 std::copy(slots.begin(), slots.end(), sources.begin());
                 reduce(call.reduction, call.dtype, sources, out, static_cast<size_t>(call.elements));
               });
    return;
  }
  // Each piece is cut into a section for every rank, which reduces it in one round and hands the
  // result round in the next, together with the operands of the next piece.
  const size_t most = round_down(SharedSegment::kSlotBytes / (ranks + 1));
  const size_t even = divide_up(divide_up(bytes, ranks), kLine) * kLine;
  const size_t section = std::min(most, even);
  const size_t piece = section * ranks;
  const uint64_t pieces = divide_up(bytes, piece);
  // Bytes of section s of a piece.
  const auto extent = [&](uint64_t p, size_t s) {
    const size_t start = p * piece + s * section;
    return start >= bytes ? 0 : std::min(section, bytes - start);
  };
  Rounds rounds(progress, pieces + 1);
  for (uint64_t p = 0; p <= pieces; ++p) {
    rounds.round(
        [&](char* slot) {
          for (size_t s = 0; s < ranks && p < pieces; ++s) {
            if (s != me) std::memcpy(slot + s * section, in + p * piece + s * section, extent(p, s));
          }
          if (p > 0) std::memcpy(slot + piece, out + (p - 1) * piece + me * section, extent(p - 1, me));
        },
        [&](const std::vector<const char*>& slots) {
          for (size_t s = 0; s < ranks && p > 0; ++s) {
            if (s != me) std::memcpy(out + (p - 1) * piece + s * section, slots[s] + piece, extent(p - 1, s));
          }
          if (p == pieces) return;
          const size_t start = p * piece + me * section;
          for (size_t s = 0; s < ranks; ++s) sources[s] = s == me ? in + start : slots[s] + me * section;
          reduce(call.reduction, call.dtype, sources, out + start, extent(p, me) / item);
        });
  }
}

void SharedTransport::reduce_scatter(const Collective& call, Deadline deadline, c10::ArrayRef<const char*> in,
                                     c10::ArrayRef<size_t> counts, char* out) {
  Progress progress(peers_, call, deadline);
  const auto me = static_cast<size_t>(rank());
  const size_t item = c10::elementSize(call.dtype);
  size_t longest = 0;
  size_t receivers = 0;  // a reduction to one rank has a single one, which gets the whole slot
  std::vector<size_t> place(in.size(), 0);
  for (size_t r = 0; r < in.size(); ++r) {
    longest = std::max(longest, counts[r]);
    place[r] = receivers;
    if (counts[r] > 0) ++receivers;
  }
  const size_t section = round_down(SharedSegment::kSlotBytes / std::max<size_t>(1, receivers)) / item;  // in elements
  const uint64_t rounds = std::max<uint64_t>(1, divide_up(longest, section));
  std::vector<const void*> sources(in.size());
  Rounds all(progress, rounds);
  for (uint64_t round = 0; round < rounds; ++round) {
    const size_t start = round * section;
    const auto extent = [&](size_t r) { return counts[r] > start ? std::min(section, counts[r] - start) : 0; };
    all.round(
        [&](char* slot) {
          for (size_t r = 0; r < in.size(); ++r) {
            if (r != me && extent(r) > 0)
              std::memcpy(slot + place[r] * section * item, in[r] + start * item, extent(r) * item);
          }
        },
        [&](const std::vector<const char*>& slots) {
          if (extent(me) == 0) return;
          for (size_t r = 0; r < in.size(); ++r)
            sources[r] = r == me ? in[r] + start * item : slots[r] + place[me] * section * item;
          reduce(call.reduction, call.dtype, sources, out + start * item, extent(me));
        });
  }
}

}  // namespace neuron::distributed
