// SPDX-License-Identifier: Apache-2.0
#include <distributed/work.h>

#include <ATen/core/ivalue.h>
#include <c10/util/Exception.h>
#include <torch/csrc/utils/pybind.h>

#include <device/launch_queue.h>
#include <nrt/gil.h>

namespace neuron::distributed {
namespace {

// How long the host waits before it looks for signals.
constexpr std::chrono::milliseconds kPatience{50};

c10::intrusive_ptr<c10::ivalue::Future> new_future(c10::Device device) {
  return c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()),
                                                  std::vector<c10::Device>{device});
}

}  // namespace

void check_signals() {
  // Only the main thread of Python runs handlers; for others this does nothing.
  if (!Py_IsInitialized()) return;
  const pybind11::gil_scoped_acquire gil;
  if (PyErr_CheckSignals() != 0) throw pybind11::error_already_set();
}

NeuronWork::NeuronWork(std::shared_ptr<Transport> transport, c10d::OpType type, uint64_t sequence, c10::Device device,
                       std::vector<at::Tensor> results)
    : Work(transport->rank(), type),
      transport_(std::move(transport)),
      sequence_(sequence),
      device_(device),
      results_(std::move(results)) {}

bool NeuronWork::isCompleted() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (completed_) return true;
  }
  LaunchQueue::of(device_.index()).done(place_);  // polling wakes the core
  return false;
}

bool NeuronWork::isSuccess() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return completed_ && exception_ == nullptr;
}

void NeuronWork::set_message(std::shared_ptr<Message> message) {
  std::lock_guard<std::mutex> lock(mutex_);
  message_ = std::move(message);
}

int NeuronWork::sourceRank() const {
  std::lock_guard<std::mutex> lock(mutex_);
  TORCH_CHECK(message_ != nullptr && opType_ == c10d::OpType::RECVANYSOURCE,
              "sourceRank() is for receives from any rank, after they are done.");
  return message_->source();
}

void NeuronWork::complete(std::exception_ptr error) {
  c10::intrusive_ptr<c10::ivalue::Future> future;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (completed_) return;
    completed_ = true;
    exception_ = error;
    future = future_;
  }
  cv_.notify_all();
  if (!future) return;
  if (error) {
    future->setError(error);
  } else {
    future->markCompleted(c10::IValue(results_));
  }
}

bool NeuronWork::wait_within(std::chrono::milliseconds patience) {
  std::shared_ptr<Message> message;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (completed_) return true;
    message = message_;
  }
  if (message != nullptr) {
    try {
      if (!message->wait(patience)) return false;
    } catch (const c10::Error&) {
      complete(std::current_exception());
      return true;
    }
    complete(nullptr);
    return true;
  }
  if (!LaunchQueue::of(device_.index()).wait_for(place_, patience)) return false;
  std::unique_lock<std::mutex> lock(mutex_);
  if (message_ != nullptr) return completed_;
  return cv_.wait_for(lock, patience, [this] { return completed_; });
}

bool NeuronWork::wait(std::chrono::milliseconds timeout) {
  const GilRelease no_gil;
  const Deadline deadline = timeout == kNoTimeout ? Deadline::max() : deadline_in(timeout);
  while (!wait_within(kPatience)) {
    try {
      check_signals();
    } catch (...) {
      transport_->abort("the wait for a collective was interrupted.");
      throw;
    }
    if (Clock::now() >= deadline) {
      C10_THROW_ERROR(DistBackendError,
                      c10::str("wait(timeout): ", c10d::opTypeToString(opType_), " #", sequence_, " of rank ",
                               transport_->rank(), " is not done within ", timeout.count(), " ms."));
    }
  }
  std::unique_lock<std::mutex> lock(mutex_);
  if (const std::exception_ptr error = exception_) {
    lock.unlock();
    std::rethrow_exception(error);
  }
  return true;
}

void NeuronWork::abort() { transport_->abort("a collective was aborted (Work.abort)."); }

c10::intrusive_ptr<c10::ivalue::Future> NeuronWork::getFuture() {
  std::unique_lock<std::mutex> lock(mutex_);
  if (future_) return future_;
  future_ = new_future(device_);
  if (!completed_) {
    lock.unlock();
    isCompleted();
    return future_;
  }
  lock.unlock();
  if (exception_) {
    future_->setError(exception_);
  } else {
    future_->markCompleted(c10::IValue(results_));
  }
  return future_;
}

bool CoalescedWork::isCompleted() {
  bool all = true;
  for (const auto& work : works_) all = work->isCompleted() && all;
  return all;
}

bool CoalescedWork::isSuccess() const {
  return std::all_of(works_.begin(), works_.end(), [](const auto& work) { return work->isSuccess(); });
}

bool CoalescedWork::wait(std::chrono::milliseconds timeout) {
  for (const auto& work : works_) work->wait(timeout);
  return true;
}

std::vector<at::Tensor> CoalescedWork::result() {
  std::vector<at::Tensor> all;
  for (const auto& work : works_) {
    for (const at::Tensor& tensor : work->result()) all.push_back(tensor);
  }
  return all;
}

c10::intrusive_ptr<c10::ivalue::Future> CoalescedWork::getFuture() {
  c10::List<c10::intrusive_ptr<c10::ivalue::Future>> futures(
      c10::FutureType::create(c10::ListType::create(c10::TensorType::get())));
  for (const auto& work : works_) futures.push_back(work->getFuture());
  return c10::collectAll(futures);
}

void CollectiveThread::submit(std::function<void()> task) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!thread_.joinable()) thread_ = std::thread([this] { work(); });
    tasks_.push_back(std::move(task));
  }
  changed_.notify_all();
}

void CollectiveThread::wait_idle() {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [this] { return tasks_.empty() && !running_; });
}

bool CollectiveThread::wait_idle(std::chrono::milliseconds patience) {
  std::unique_lock<std::mutex> lock(mutex_);
  return changed_.wait_for(lock, patience, [this] { return tasks_.empty() && !running_; });
}

void CollectiveThread::stop() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (!thread_.joinable()) return;
  // The last reference to a group may go away in a callback of its own thread.
  if (thread_.get_id() == std::this_thread::get_id()) {
    thread_.detach();
  } else {
    const GilRelease no_gil;
    thread_.join();
  }
}

void CollectiveThread::work() {
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return stopping_ || !tasks_.empty(); });
    if (tasks_.empty()) return;
    const std::function<void()> task = std::move(tasks_.front());
    tasks_.pop_front();
    running_ = true;
    lock.unlock();
    task();
    lock.lock();
    running_ = false;
    changed_.notify_all();
  }
}

}  // namespace neuron::distributed
