// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <string>

#include <c10/core/ScalarType.h>
#include <c10/util/ArrayRef.h>

namespace neuron::distributed {

enum class Kind : uint8_t {
  Barrier,
  AllReduce,
  Reduce,
  ReduceScatter,
  Broadcast,
  AllGather,
  Gather,
  Scatter,
  AllToAll,
};

enum class Reduction : uint8_t { Sum, Average, Product, Min, Max, And, Or, Xor };

using Clock = std::chrono::steady_clock;
using Deadline = Clock::time_point;

// One call of a collective, as all ranks must agree on it. It lies in memory that other processes
// read, so it holds no pointers.
struct Collective {
  static constexpr size_t kDims = 6;

  Kind kind = Kind::Barrier;
  Reduction reduction = Reduction::Sum;
  c10::ScalarType dtype = c10::ScalarType::Byte;
  int8_t rank = 0;        // of the tensor: how many of `dims` count; kDims + 1 when there are more
  int32_t root = -1;      // -1: none
  uint64_t sequence = 0;  // how many collectives the group had before
  int64_t elements = 0;   // of the tensor that is reduced; ranks may differ in other kinds
  std::array<int64_t, kDims> dims{};

  void set_shape(c10::IntArrayRef sizes);
  // Whether the other call belongs to this one.
  bool matches(const Collective& other) const;
};

// "all_reduce"
const char* name_of(Kind kind);
const char* name_of(Reduction reduction);
// "all_reduce #7 (sum) of float32 [2, 3]"
std::string describe(const Collective& call);

// When a call that may take `timeout` from now has to be done. Very long ones do not overflow.
Deadline deadline_in(std::chrono::milliseconds timeout);

}  // namespace neuron::distributed
