// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>

#include "amx.h"
#include "matrices.h"

// A float32 of 24 significant bits as the exact sum of three bfloat16 of 8 each: high, middle and low. The product of
// two such sums, less middle * low, low * middle and low * low, which are below 2^-26 of it, is more exact than one
// that is rounded to float32: six products of bfloat16, summed up in float32, do for one of float32.
namespace neuron {

constexpr int64_t kPanel = 32;      // lines: rows of the left operand, columns of the right one
constexpr int64_t kPartsStep = 32;  // inner elements that a tile takes
constexpr int64_t kPartBytes = 2 * kTileBytes;
constexpr int64_t kPartsStepBytes = 3 * kPartBytes;

// Magnitudes of elements, as the bits of float32: the largest of all, and the least among the lines' largest, over a
// block of inner elements and without lines of zeros.
class Magnitudes {
 public:
  void add(int32_t line_most) {
    most_ = std::max(most_, line_most);
    if (line_most != 0) least_ = std::min(least_, line_most);
  }
  void add(const Magnitudes& other) {
    most_ = std::max(most_, other.most_);
    least_ = std::min(least_, other.least_);
  }

  // Whether products of parts are exact enough: no part is infinite, and what underflows does not matter. AMX takes
  // numbers below 2^-126 for zero: 2^-66, or less, of the lines' largest elements and of their products.
  bool suit(const Magnitudes& other) const {
    constexpr int32_t kRoundsToInfinity = 0x7F7F8000;
    const int32_t exponent = (least_ >> 23) - kBias, other_exponent = (other.least_ >> 23) - kBias;
    return std::max(most_, other.most_) < kRoundsToInfinity && std::min(exponent, other_exponent) >= -60 &&
           exponent + other_exponent >= -60;
  }

 private:
  static constexpr int32_t kBias = 127;
  int32_t most_ = 0, least_ = 0x7F800000;
};

// Packs `count` lines, 32 at most, of `inner` elements: for every 32 elements the two tiles of the high parts, then of
// the middle and of the low ones. Element i shares a pair with i + 16. A line of the left operand's tiles has a line's
// pairs, one of the right operand's a pair of each line. What lacks to whole tiles is zero.
void pack_left(const Lines<float>& lines, int64_t count, int64_t inner, char* to, Magnitudes* magnitudes);
void pack_right(const Lines<float>& lines, int64_t count, int64_t inner, char* to, Magnitudes* magnitudes);

}  // namespace neuron
