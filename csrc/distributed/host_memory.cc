// SPDX-License-Identifier: Apache-2.0
#include <distributed/host_memory.h>

#include <algorithm>
#include <utility>

#include <device/block.h>
#include <nrt/runtime.h>

namespace neuron::distributed {

HostMemory::HostMemory(const at::Tensor& tensor, Use use) : tensor_(tensor), use_(use), size_(tensor.nbytes()) {
  if (size_ == 0) return;
  const Runtime& nrt = runtime();
  nrt_tensor_t* block = block_of(tensor);
  const size_t offset = byte_offset(tensor);
  if (nrt.neuroncore_borrow != nullptr) {
    void* data = nullptr;
    check_status(nrt.neuroncore_borrow(block, offset, size_, use == Use::Overwrite, &data, &loan_),
                 "reaching device memory for a collective");
    data_ = static_cast<char*>(data);
    return;
  }
  staged_.reset(new char[size_]);
  data_ = staged_.get();
  if (use != Use::Overwrite)
    check_status(nrt.tensor_read(block, data_, offset, size_), "reading device memory for a collective");
}

HostMemory::HostMemory(HostMemory&& other) noexcept
    : tensor_(std::move(other.tensor_)),
      use_(other.use_),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      loan_(std::exchange(other.loan_, nullptr)),
      staged_(std::move(other.staged_)) {}

HostMemory::~HostMemory() {
  if (loan_ != nullptr) runtime().neuroncore_give_back(loan_);
}

void HostMemory::commit() {
  if (staged_ == nullptr || use_ == Use::Read) return;
  check_status(runtime().tensor_write(block_of(tensor_), data_, byte_offset(tensor_), size_),
               "writing device memory after a collective");
}

std::vector<HostMemory> host_memory_of(const std::vector<TensorUse>& tensors) {
  std::vector<const void*> blocks;
  for (const TensorUse& entry : tensors) {
    if (entry.tensor.numel() > 0) blocks.push_back(block_of(entry.tensor));
  }
  std::sort(blocks.begin(), blocks.end());
  const bool shared = std::adjacent_find(blocks.begin(), blocks.end()) != blocks.end();
  std::vector<HostMemory> memory;
  memory.reserve(tensors.size());
  // A block gets memory as far as it is used, so a view further back may move what an earlier one
  // had: a first pass makes it large enough, keeping what it holds.
  for (int pass = shared ? 0 : 1; pass < 2; ++pass) {
    memory.clear();
    for (const auto& [tensor, use] : tensors)
      memory.emplace_back(tensor, shared && use == HostMemory::Use::Overwrite ? HostMemory::Use::Update : use);
  }
  return memory;
}

}  // namespace neuron::distributed
