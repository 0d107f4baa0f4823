// SPDX-License-Identifier: Apache-2.0
#include <distributed/shared_segment.h>

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <fstream>
#include <random>
#include <sstream>
#include <vector>

#include <c10/util/Exception.h>

#include <nrt/environment.h>

namespace neuron::distributed {
namespace {

constexpr size_t kPage = 4096;
// Of the rings of one rank together, as address space: pages that nothing has passed through take no memory. A message
// may be longer than its ring, but long rings carry it up to three times as fast as ones of 256 KiB.
constexpr size_t kRingsPerRank = size_t{4} << 20;
constexpr size_t kSmallestRing = size_t{8} << 10;
constexpr size_t kLargestRing = size_t{1} << 20;

constexpr size_t round_up(size_t bytes, size_t step) { return (bytes + step - 1) / step * step; }

// What rank 0 tells the others. The nonce, which stands at the start of the memory too, tells its
// process from another one with that number on another machine or in another container.
struct Invitation {
  std::string host;
  int process = 0;
  int file = 0;
  uint64_t nonce = 0;
};

struct Preamble {
  uint64_t nonce;
};

// A host is what one agent of the launcher looks after: local ranks, and so cores, are counted anew
// for each, on machines of their own or not.
std::string host_id() {
  std::string boot;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), boot);
  return c10::str(boot.empty() ? "unknown" : boot, "/", environment::launcher_node());
}

// Locks belong to the process: children that it forks have none.
bool lock_byte(int file, int rank) {
  struct flock lock{};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  lock.l_start = rank;
  lock.l_len = 1;
  return fcntl(file, F_SETLK, &lock) == 0;
}

void put(c10d::Store& store, const std::string& key, const std::string& value) {
  store.set(key, std::vector<uint8_t>(value.begin(), value.end()));
}

std::string take(c10d::Store& store, const std::string& key) {
  const std::vector<uint8_t> bytes = store.get(key);
  return {bytes.begin(), bytes.end()};
}

std::string key_of(int rank) { return c10::str("memory/", rank); }

// Waits for the keys of all ranks; says who is missing.
void wait_for_ranks(c10d::Store& store, int rank, int size, std::chrono::milliseconds timeout) {
  std::vector<std::string> keys;
  for (int r = 0; r < size; ++r) keys.push_back(key_of(r));
  try {
    store.wait(keys, timeout);
  } catch (const std::exception& error) {
    std::string missing;
    for (int r = 0; r < size; ++r) {
      if (!store.check({keys[static_cast<size_t>(r)]})) missing += c10::str(missing.empty() ? "" : ", ", r);
    }
    if (missing.empty()) throw;
    C10_THROW_ERROR(DistBackendError,
                    c10::str("rank ", rank, ": the group of ", size, " ranks is not complete after ", timeout.count(),
                             " ms. Missing: rank ", missing, ". Every rank has to create the group."));
  }
}

}  // namespace

void Bell::ring() {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (sleepers.load(std::memory_order_relaxed) == 0) return;
  rings.fetch_add(1, std::memory_order_seq_cst);
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&rings), FUTEX_WAKE, INT32_MAX, nullptr, nullptr, 0);
}

void Bell::sleep(uint32_t ticket, std::chrono::microseconds at_most) {
  const timespec patience{at_most.count() / 1000000, at_most.count() % 1000000 * 1000};
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&rings), FUTEX_WAIT, ticket, &patience, nullptr, 0);
}

SharedSegment::SharedSegment(int file, void* memory, int rank, int size)
    : file_(file), memory_(static_cast<char*>(memory)), rank_(rank), size_(size) {
  lay_out();
}

void SharedSegment::lay_out() {
  const auto ranks = static_cast<size_t>(size_);
  size_t offset = kPage + ranks * sizeof(RankControl);
  consumed_offset_ = offset;
  offset = round_up(offset + ranks * round_up(ranks * sizeof(uint64_t), 64), kPage);
  slots_offset_ = offset;
  slot_stride_ = round_up(sizeof(SlotHeader) + ranks * sizeof(uint64_t), 64) + kSlotBytes;
  offset = round_up(offset + ranks * kSlots * slot_stride_, kPage);
  rings_offset_ = offset;
  ring_bytes_ = round_up(std::clamp(kRingsPerRank / ranks, kSmallestRing, kLargestRing), kPage);
  ring_stride_ = sizeof(MessageRing) + ring_bytes_;
  total_bytes_ = round_up(offset + ranks * ranks * ring_stride_, kPage);
}

size_t SharedSegment::total_bytes(int size) {
  const SharedSegment plan(-1, nullptr, 0, size);
  return plan.total_bytes_;
}

SharedSegment::~SharedSegment() {
  if (memory_ != nullptr) munmap(memory_, total_bytes_);
  if (file_ >= 0) close(file_);
}

std::unique_ptr<SharedSegment> SharedSegment::attach(c10d::Store& store, int rank, int size,
                                                     std::chrono::milliseconds timeout) {
  const size_t bytes = total_bytes(size);
  const auto map = [&](int file) {
    void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    return memory == MAP_FAILED ? nullptr : memory;
  };
  std::unique_ptr<SharedSegment> segment;
  const auto join = [&](int file) {
    void* memory = map(file);
    if (memory == nullptr || !lock_byte(file, rank)) {
      if (memory != nullptr) munmap(memory, bytes);
      close(file);
      return;
    }
    segment.reset(new SharedSegment(file, memory, rank, size));
    segment->control(rank).process = getpid();
  };
  if (rank == 0) {
    const int file = memfd_create("neuron-group", MFD_CLOEXEC);
    std::random_device device;
    const uint64_t nonce = (static_cast<uint64_t>(device()) << 32) | device();
    if (file >= 0 && ftruncate(file, static_cast<off_t>(bytes)) == 0) join(file);
    if (segment != nullptr) reinterpret_cast<Preamble*>(segment->memory_)->nonce = nonce;
    std::ostringstream text;
    text << host_id() << ' ' << getpid() << ' ' << (segment != nullptr ? file : -1) << ' ' << nonce;
    put(store, key_of(0), text.str());
  } else {
    try {
      store.wait({key_of(0)}, timeout);
    } catch (const std::exception&) {
      C10_THROW_ERROR(DistBackendError, c10::str("rank ", rank, ": rank 0 has not created the group of ", size,
                                                 " ranks within ", timeout.count(), " ms."));
    }
    Invitation invitation;
    std::istringstream(take(store, key_of(0))) >> invitation.host >> invitation.process >> invitation.file >>
        invitation.nonce;
    if (invitation.file >= 0 && invitation.host == host_id()) {
      const std::string path = c10::str("/proc/", invitation.process, "/fd/", invitation.file);
      const int file = open(path.c_str(), O_RDWR | O_CLOEXEC);
      struct stat facts{};
      if (file >= 0 && fstat(file, &facts) == 0 && facts.st_size == static_cast<off_t>(bytes)) {
        join(file);
      } else if (file >= 0) {
        close(file);
      }
      if (segment != nullptr && reinterpret_cast<Preamble*>(segment->memory_)->nonce != invitation.nonce)
        segment.reset();
    }
    put(store, key_of(rank), segment != nullptr ? "here" : "elsewhere");
  }
  // Everybody reads everybody's answer: so all come to the same result, and none goes on alone.
  wait_for_ranks(store, rank, size, timeout);
  bool complete = segment != nullptr;
  for (int r = 1; r < size; ++r) complete = take(store, key_of(r)) == "here" && complete;
  if (!complete) segment.reset();
  return segment;
}

RankControl& SharedSegment::control(int rank) const { return reinterpret_cast<RankControl*>(memory_ + kPage)[rank]; }

std::atomic<uint64_t>& SharedSegment::consumed(int reader, int writer) const {
  const size_t row = round_up(static_cast<size_t>(size_) * sizeof(uint64_t), 64);
  return reinterpret_cast<std::atomic<uint64_t>*>(memory_ + consumed_offset_ +
                                                  static_cast<size_t>(reader) * row)[writer];
}

SlotHeader& SharedSegment::slot_header(int rank, uint64_t round) const {
  const size_t slot = static_cast<size_t>(rank) * kSlots + round % kSlots;
  return *reinterpret_cast<SlotHeader*>(memory_ + slots_offset_ + slot * slot_stride_);
}

uint64_t* SharedSegment::slot_parts(int rank, uint64_t round) const {
  return reinterpret_cast<uint64_t*>(&slot_header(rank, round) + 1);
}

char* SharedSegment::slot_data(int rank, uint64_t round) const {
  return reinterpret_cast<char*>(&slot_header(rank, round)) + slot_stride_ - kSlotBytes;
}

MessageRing& SharedSegment::ring(int from, int to) const {
  const size_t index = static_cast<size_t>(from) * static_cast<size_t>(size_) + static_cast<size_t>(to);
  return *reinterpret_cast<MessageRing*>(memory_ + rings_offset_ + index * ring_stride_);
}

char* SharedSegment::ring_data(int from, int to) const { return reinterpret_cast<char*>(&ring(from, to) + 1); }

bool SharedSegment::alive(int rank) const {
  if (rank == rank_) return true;
  struct flock lock{};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  lock.l_start = rank;
  lock.l_len = 1;
  // The lock of another process stands in the way for as long as that process lives.
  return fcntl(file_, F_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

}  // namespace neuron::distributed
