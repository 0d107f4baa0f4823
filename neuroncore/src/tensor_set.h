// SPDX-License-Identifier: Apache-2.0
//
// Tensor sets: "input7" and "output7" are array slots, so that a launch looks nothing up; other names are kept in a
// map.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tensor.h"

namespace neuroncore {

constexpr uint64_t kTensorSetMagic = 0x74656e736f727365;

struct TensorSet {
  struct Entry {
    Tensor* tensor = nullptr;
    uint64_t serial = 0;  // of the tensor when it was added

    // Null if the tensor has been freed since.
    Tensor* live() const {
      return tensor != nullptr && tensor->magic == kTensorMagic && tensor->serial == serial ? tensor : nullptr;
    }
  };

  uint64_t magic = 0;
  std::vector<Entry> inputs;
  std::vector<Entry> outputs;
  std::map<std::string, Entry, std::less<>> others;
};

// The live set behind a handle, or null after Fail().
TensorSet* GetTensorSet(const char* function, const void* handle);

}  // namespace neuroncore
