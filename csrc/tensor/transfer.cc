// SPDX-License-Identifier: Apache-2.0
#include <tensor/transfer.h>

#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include <device/launch_queue.h>
#include <nrt/runtime.h>

namespace neuron {
namespace {

// Below this a copy of the source costs less than waiting for the core.
constexpr size_t kStagedBytes = size_t{64} << 10;
constexpr double kBytesPerMicrosecond = 5000;

double estimated_us(size_t bytes) { return 0.5 + static_cast<double>(bytes) / kBytesPerMicrosecond; }

// Runs a transfer now, in order, on whichever thread drives the core, and raises what it returns.
template <typename Transfer>
void run_checked(LaunchQueue& queue, const char* what, const Transfer& transfer) {
  std::string failure;
  NRT_STATUS status = NRT_SUCCESS;
  queue.run([&] {
    status = transfer();
    if (status != NRT_SUCCESS) failure = describe_status(status);  // the detail belongs to this thread
  });
  raise_status(status, what, failure);
}

constexpr const char* kReading = "reading device memory";
constexpr const char* kWriting = "writing device memory";
constexpr const char* kCopying = "copying device memory";

}  // namespace

void read_block(c10::DeviceIndex device, nrt_tensor_t* block, size_t offset, void* destination, size_t bytes) {
  if (bytes == 0) return;
  const Runtime& nrt = runtime();
  run_checked(LaunchQueue::of(device), kReading, [&] { return nrt.tensor_read(block, destination, offset, bytes); });
}

void read_block_later(c10::DeviceIndex device, nrt_tensor_t* block, size_t offset, c10::Storage holder,
                      void* destination, size_t bytes) {
  if (bytes == 0) return;
  const Runtime& nrt = runtime();
  LaunchQueue::of(device).enqueue_task(estimated_us(bytes),
                                       [&nrt, block, offset, holder = std::move(holder), destination, bytes] {
                                         check_status(nrt.tensor_read(block, destination, offset, bytes), kReading);
                                       });
}

void write_block(c10::DeviceIndex device, nrt_tensor_t* block, size_t offset, const void* source, size_t bytes) {
  if (bytes == 0) return;
  const Runtime& nrt = runtime();
  LaunchQueue& queue = LaunchQueue::of(device);
  if (bytes <= kStagedBytes) {
    std::shared_ptr<char[]> staged(new char[bytes]);
    std::memcpy(staged.get(), source, bytes);
    queue.enqueue_task(estimated_us(bytes), [&nrt, block, offset, staged = std::move(staged), bytes] {
      check_status(nrt.tensor_write(block, staged.get(), offset, bytes), kWriting);
    });
    return;
  }
  run_checked(queue, kWriting, [&] { return nrt.tensor_write(block, source, offset, bytes); });
}

void write_block_later(c10::DeviceIndex device, nrt_tensor_t* block, size_t offset, c10::Storage holder,
                       const void* source, size_t bytes) {
  if (bytes == 0) return;
  const Runtime& nrt = runtime();
  LaunchQueue::of(device).enqueue_task(estimated_us(bytes),
                                       [&nrt, block, offset, holder = std::move(holder), source, bytes] {
                                         check_status(nrt.tensor_write(block, source, offset, bytes), kWriting);
                                       });
}

void copy_block(c10::DeviceIndex device, nrt_tensor_t* destination, size_t destination_offset, nrt_tensor_t* source,
                size_t source_offset, size_t bytes) {
  if (bytes == 0) return;
  const Runtime& nrt = runtime();
  LaunchQueue::of(device).enqueue_task(estimated_us(bytes), [=, &nrt] {
    check_status(nrt.tensor_copy(source, source_offset, destination, destination_offset, bytes), kCopying);
  });
}

}  // namespace neuron
