// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <torch/csrc/distributed/c10d/Work.hpp>

#include <distributed/transport.h>

namespace neuron::distributed {

// What a collective or a message returns. wait() blocks the host until the result is there, and
// raises what went wrong; so an error belongs to the line that caused it, and everything that is
// launched afterwards sees the result.
class NeuronWork final : public c10d::Work {
 public:
  NeuronWork(std::shared_ptr<Transport> transport, c10d::OpType type, uint64_t sequence, c10::Device device,
             std::vector<at::Tensor> results);

  bool isCompleted() override;
  bool isSuccess() const override;
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  void synchronize() override { wait(); }
  void abort() override;
  std::vector<at::Tensor> result() override { return results_; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  uint64_t getSequencenumber() const override { return sequence_; }
  int sourceRank() const override;

  // Its place in the launch queue: the operation itself, or its start.
  void set_place(uint64_t place) { place_ = place; }
  void set_message(std::shared_ptr<Message> message);
  void complete(std::exception_ptr error);

 private:
  bool wait_within(std::chrono::milliseconds patience);

  std::shared_ptr<Transport> transport_;
  uint64_t sequence_;
  c10::Device device_;
  std::vector<at::Tensor> results_;
  uint64_t place_ = 0;
  std::shared_ptr<Message> message_;                // guarded by mutex_
  c10::intrusive_ptr<c10::ivalue::Future> future_;  // guarded by mutex_
};

// Several works as one.
class CoalescedWork final : public c10d::Work {
 public:
  explicit CoalescedWork(std::vector<c10::intrusive_ptr<NeuronWork>> works)
      : Work(-1, c10d::OpType::COALESCED), works_(std::move(works)) {}

  bool isCompleted() override;
  bool isSuccess() const override;
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  void synchronize() override { wait(); }
  std::vector<at::Tensor> result() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;

 private:
  std::vector<c10::intrusive_ptr<NeuronWork>> works_;
};

// The thread that runs the asynchronous collectives of a group, in order. Started by the first.
class CollectiveThread {
 public:
  ~CollectiveThread() { stop(); }
  void submit(std::function<void()> task);
  // Waits until all that was submitted has run. False when that takes longer than `patience`.
  bool wait_idle(std::chrono::milliseconds patience);
  void wait_idle();
  void stop();

 private:
  void work();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  bool running_ = false;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace neuron::distributed
