// SPDX-License-Identifier: Apache-2.0
#include <distributed/ring_link.h>

#include <algorithm>
#include <cstring>

namespace neuron::distributed {

size_t RingLink::write(int peer, const char* data, size_t bytes) {
  MessageRing& ring = segment_.ring(segment_.rank(), peer);
  char* memory = segment_.ring_data(segment_.rank(), peer);
  const size_t capacity = segment_.ring_bytes();
  const uint64_t written = ring.written.load(std::memory_order_relaxed);
  const size_t room = capacity - static_cast<size_t>(written - ring.read.load(std::memory_order_acquire));
  bytes = std::min(bytes, room);
  if (bytes == 0) return 0;
  const size_t start = written % capacity;
  const size_t first = std::min(bytes, capacity - start);  // up to the end of the ring
  std::memcpy(memory + start, data, first);
  std::memcpy(memory, data + first, bytes - first);
  ring.written.store(written + bytes, std::memory_order_release);
  return bytes;
}

size_t RingLink::read(int peer, char* data, size_t bytes) {
  MessageRing& ring = segment_.ring(peer, segment_.rank());
  const char* memory = segment_.ring_data(peer, segment_.rank());
  const size_t capacity = segment_.ring_bytes();
  const uint64_t read = ring.read.load(std::memory_order_relaxed);
  bytes = std::min(bytes, static_cast<size_t>(ring.written.load(std::memory_order_acquire) - read));
  if (bytes == 0) return 0;
  const size_t start = read % capacity;
  const size_t first = std::min(bytes, capacity - start);
  std::memcpy(data, memory + start, first);
  std::memcpy(data + first, memory, bytes - first);
  ring.read.store(read + bytes, std::memory_order_release);
  return bytes;
}

}  // namespace neuron::distributed
