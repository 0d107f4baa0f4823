// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

namespace neuron::distributed {

// The bytes of a contiguous device tensor where the host can reach them, from now on until it is
// destroyed. On the software core that is the device memory itself; otherwise a copy, which commit()
// writes back. To be made in the order of the launch queue, on the thread that drives it.
class HostMemory {
 public:
  enum class Use { Read, Update, Overwrite };

  HostMemory(const at::Tensor& tensor, Use use);
  ~HostMemory();
  HostMemory(HostMemory&& other) noexcept;
  HostMemory(const HostMemory&) = delete;
  HostMemory& operator=(const HostMemory&) = delete;

  char* data() const { return data_; }
  size_t size() const { return size_; }
  void commit();

 private:
  at::Tensor tensor_;  // keeps the memory from being handed out again
  Use use_;
  char* data_ = nullptr;
  size_t size_ = 0;
  void* loan_ = nullptr;
  std::unique_ptr<char[]> staged_;
};

struct TensorUse {
  at::Tensor tensor;
  HostMemory::Use use;
};

// The memory of all tensors of a collective, some of which may be views of one block.
std::vector<HostMemory> host_memory_of(const std::vector<TensorUse>& tensors);

}  // namespace neuron::distributed
