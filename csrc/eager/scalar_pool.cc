// SPDX-License-Identifier: Apache-2.0
#include "scalar_pool.h"

#include <vector>

#include <c10/util/flat_hash_map.h>

#include "../nrt/runtime.h"
#include "program.h"

namespace neuron {
namespace {

constexpr size_t kCapacity = 4096;

struct Key {
  uint64_t bits;
  ScalarKind kind;
  bool operator==(const Key& other) const { return bits == other.bits && kind == other.kind; }
};
struct Hash {
  size_t operator()(const Key& key) const {
    return (key.bits ^ (static_cast<uint64_t>(key.kind) << 59)) * 0x9E3779B97F4A7C15ull;
  }
};

// Two generations: when the young one is full it becomes the old one, and what the old one still
// held unused is freed. A launch has far fewer scalars than a generation, so what it was
// given stays valid until it has run.
struct Pool {
  ska::flat_hash_map<Key, nrt_tensor_t*, Hash> young, old;
};

Pool& pool_of(c10::DeviceIndex device) {
  static auto* pools = new std::vector<Pool>(128);
  return (*pools)[device];
}

}  // namespace

size_t scalar_bytes(ScalarKind kind) {
  switch (kind) {
    case ScalarKind::F32:
      return 4;
    case ScalarKind::Bool:
      return 1;
    default:
      return 8;
  }
}

nrt_tensor_t* scalar_tensor(c10::DeviceIndex device, ScalarKind kind, uint64_t bits) {
  Pool& pool = pool_of(device);
  const Key key{bits, kind};
  if (auto found = pool.young.find(key); found != pool.young.end()) return found->second;
  const auto check = [](NRT_STATUS status) {
    if (status != NRT_SUCCESS)
      throw ProgramError(status, "writing a scalar operand failed: " + describe_status(status));
  };
  if (pool.young.size() >= kCapacity) {
    for (auto& entry : pool.old) runtime().tensor_free(&entry.second);
    pool.old = std::move(pool.young);
    pool.young = {};
  }
  nrt_tensor_t* tensor = nullptr;
  if (auto found = pool.old.find(key); found != pool.old.end()) {
    tensor = found->second;
    pool.old.erase(found);
  } else {
    check(
        runtime().tensor_allocate(NRT_TENSOR_PLACEMENT_DEVICE, core_of(device), scalar_bytes(kind), nullptr, &tensor));
    check(runtime().tensor_write(tensor, &bits, 0, scalar_bytes(kind)));  // little-endian
  }
  pool.young.emplace(key, tensor);
  return tensor;
}

}  // namespace neuron
