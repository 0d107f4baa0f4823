// SPDX-License-Identifier: Apache-2.0
#include "sha256.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

namespace neuroncore {
namespace {

// The round constants are the first 32 bits of the fractional parts of the cube roots of the first 64 primes.
std::array<uint32_t, 64> RoundConstants() {
  std::array<uint32_t, 64> constants;
  size_t count = 0;
  for (uint32_t candidate = 2; count < constants.size(); ++candidate) {
    bool prime = true;
    for (uint32_t divisor = 2; divisor * divisor <= candidate && prime; ++divisor) prime = candidate % divisor != 0;
    if (!prime) continue;
    long double root = std::cbrt(static_cast<long double>(candidate));
    constants[count++] = static_cast<uint32_t>(std::floor((root - std::floor(root)) * 4294967296.0L));
  }
  return constants;
}

const std::array<uint32_t, 64>& Constants() {
  static const std::array<uint32_t, 64> constants = RoundConstants();
  return constants;
}

}  // namespace

void Sha256::Block(const uint8_t* block) {
  const std::array<uint32_t, 64>& k = Constants();
  uint32_t w[64];
  for (int i = 0; i < 16; ++i) {
    w[i] = uint32_t(block[4 * i]) << 24 | uint32_t(block[4 * i + 1]) << 16 | uint32_t(block[4 * i + 2]) << 8 |
           block[4 * i + 3];
  }
  for (int i = 16; i < 64; ++i) {
    uint32_t s0 = std::rotr(w[i - 15], 7) ^ std::rotr(w[i - 15], 18) ^ (w[i - 15] >> 3);
    uint32_t s1 = std::rotr(w[i - 2], 17) ^ std::rotr(w[i - 2], 19) ^ (w[i - 2] >> 10);
    w[i] = w[i - 16] + s0 + w[i - 7] + s1;
  }
  auto [a, b, c, d, e, f, g, h] = state_;
  for (int i = 0; i < 64; ++i) {
    uint32_t s1 = std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25);
    uint32_t t1 = h + s1 + ((e & f) ^ (~e & g)) + k[i] + w[i];
    uint32_t s0 = std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22);
    uint32_t t2 = s0 + ((a & b) ^ (a & c) ^ (b & c));
    h = g, g = f, f = e, e = d + t1;
    d = c, c = b, b = a, a = t1 + t2;
  }
  const uint32_t added[8] = {a, b, c, d, e, f, g, h};
  for (int i = 0; i < 8; ++i) state_[i] += added[i];
}

void Sha256::Update(const void* data, size_t size) {
  const uint8_t* bytes = static_cast<const uint8_t*>(data);
  total_ += size;
  while (size > 0) {
    if (pending_size_ == 0 && size >= 64) {
      Block(bytes);
      bytes += 64, size -= 64;
      continue;
    }
    size_t taken = std::min(size, 64 - pending_size_);
    memcpy(pending_.data() + pending_size_, bytes, taken);
    bytes += taken, size -= taken, pending_size_ += taken;
    if (pending_size_ == 64) {
      Block(pending_.data());
      pending_size_ = 0;
    }
  }
}

Sha256::Digest Sha256::Finish() {
  uint64_t bits = total_ * 8;
  const uint8_t end = 0x80;
  Update(&end, 1);
  const uint8_t zero = 0;
  while (pending_size_ != 56) Update(&zero, 1);
  uint8_t length[8];
  for (int i = 0; i < 8; ++i) length[i] = static_cast<uint8_t>(bits >> (56 - 8 * i));
  Update(length, 8);
  Digest digest;
  for (size_t i = 0; i < digest.size(); ++i) digest[i] = static_cast<uint8_t>(state_[i / 4] >> (24 - 8 * (i % 4)));
  return digest;
}

Sha256::Digest Sha256::Of(const void* data, size_t size) {
  Sha256 hash;
  hash.Update(data, size);
  return hash.Finish();
}

std::string Sha256::Hex(std::string_view data) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (uint8_t byte : Of(data.data(), data.size())) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

}  // namespace neuroncore
