// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>

namespace neuron {

// Memory that a kernel writes and forgets, aligned to pages. What was used before is handed out again, up to a limit:
// fresh memory costs a page fault every 4 KiB.
class Scratch {
 public:
  explicit Scratch(int64_t bytes);  // raises std::bad_alloc
  ~Scratch();
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  char* data() const { return block_.data.get(); }

  struct Free {
    void operator()(char* data) const;
  };
  struct Block {
    std::unique_ptr<char, Free> data;
    int64_t bytes = 0;
  };

 private:
  Block block_;
};

}  // namespace neuron
