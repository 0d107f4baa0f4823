// SPDX-License-Identifier: Apache-2.0
#include <distributed/ring_link.h>

#include <algorithm>
#include <cstring>

namespace neuron::distributed {
namespace {

// As much goes into the ring, or out of it, before the other side hears of it: both copy at once, and
// neither waits for the other to be through with the whole ring.
constexpr size_t kPieceBytes = size_t{64} << 10;

}  // namespace

size_t RingLink::write(int peer, const char* data, size_t bytes) {
  MessageRing& ring = segment_.ring(segment_.rank(), peer);
  char* memory = segment_.ring_data(segment_.rank(), peer);
  const size_t capacity = segment_.ring_bytes();
  uint64_t written = ring.written.load(std::memory_order_relaxed);
  size_t done = 0;
  while (done < bytes) {
    const size_t room = capacity - static_cast<size_t>(written - ring.read.load(std::memory_order_acquire));
    const size_t start = written % capacity;
    const size_t piece = std::min({bytes - done, room, capacity - start, kPieceBytes});
    if (piece == 0) break;
    std::memcpy(memory + start, data + done, piece);
    done += piece;
    written += piece;
    ring.written.store(written, std::memory_order_release);
  }
  return done;
}

size_t RingLink::read(int peer, char* data, size_t bytes) {
  MessageRing& ring = segment_.ring(peer, segment_.rank());
  const char* memory = segment_.ring_data(peer, segment_.rank());
  const size_t capacity = segment_.ring_bytes();
  uint64_t read = ring.read.load(std::memory_order_relaxed);
  size_t done = 0;
  while (done < bytes) {
    const auto here = static_cast<size_t>(ring.written.load(std::memory_order_acquire) - read);
    const size_t start = read % capacity;
    const size_t piece = std::min({bytes - done, here, capacity - start, kPieceBytes});
    if (piece == 0) break;
    std::memcpy(data + done, memory + start, piece);
    done += piece;
    read += piece;
    ring.read.store(read, std::memory_order_release);
  }
  return done;
}

}  // namespace neuron::distributed
