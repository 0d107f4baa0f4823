// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstddef>

// The sizes that blocks come in. Requests under 16 MiB are rounded up to eight steps per power of
// two (at most an eighth is lost), 256 bytes at least; larger ones to 64 KiB, so that a model's
// weights waste nothing.
namespace neuron::size_class {

constexpr size_t kSmallest = 256;
constexpr size_t kStepsPerDoubling = 8;
constexpr size_t kRoundedBelow = size_t{16} << 20;
constexpr size_t kLargeStep = size_t{64} << 10;
// Blocks below this belong to the small pool of the statistics.
constexpr size_t kSmallPoolBelow = size_t{1} << 20;
constexpr size_t kLowestBit = 8;  // log2(kSmallest)
constexpr size_t kCount = (24 - kLowestBit) * kStepsPerDoubling + 1;

constexpr size_t round_up(size_t bytes, size_t step) { return (bytes + step - 1) / step * step; }

// The size of the block that a request gets.
constexpr size_t rounded(size_t bytes) {
  if (bytes <= kSmallest) return kSmallest;
  if (bytes >= kRoundedBelow) return round_up(bytes, kLargeStep);
  const size_t power = std::bit_floor(bytes);
  // Never finer than 64 bytes: the core wants its buffers aligned to that.
  const size_t step = power / kStepsPerDoubling < 64 ? 64 : power / kStepsPerDoubling;
  return round_up(bytes, step);
}

// Index of a rounded size below kRoundedBelow (or equal to it).
constexpr size_t index(size_t rounded_bytes) {
  const size_t bit = static_cast<size_t>(std::bit_width(rounded_bytes)) - 1;
  const size_t step = (rounded_bytes - (size_t{1} << bit)) / ((size_t{1} << bit) / kStepsPerDoubling);
  return (bit - kLowestBit) * kStepsPerDoubling + step;
}

}  // namespace neuron::size_class
