// SPDX-License-Identifier: Apache-2.0
//
// SHA-256 (FIPS 180-4).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace neuroncore {

class Sha256 {
 public:
  using Digest = std::array<uint8_t, 32>;

  void Update(const void* data, size_t size);
  Digest Finish();

  static Digest Of(const void* data, size_t size);
  static std::string Hex(std::string_view data);

 private:
  void Block(const uint8_t* block);

  std::array<uint32_t, 8> state_ = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                    0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<uint8_t, 64> pending_ = {};
  size_t pending_size_ = 0;
  uint64_t total_ = 0;
};

}  // namespace neuroncore
