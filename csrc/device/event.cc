// SPDX-License-Identifier: Apache-2.0
#include <device/event.h>

#include <chrono>

#include <c10/util/Exception.h>

#include <device/launch_queue.h>

namespace neuron {

void Event::record(const c10::Stream& stream) {
  auto recording = std::make_shared<Recording>();
  recording->device = stream.device_index();
  LaunchQueue& queue = LaunchQueue::of(stream.device_index());
  if (timing_) {
    recording->sequence = queue.enqueue_task(0.1, [recording] {
      recording->nanoseconds = std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
    });
  } else {
    recording->sequence = queue.last_enqueued();
  }
  recording_ = std::move(recording);
}

void Event::block(const c10::Stream& stream) const {
  // One queue a device: what comes later on the same device waits anyway.
  if (recording_ == nullptr || recording_->device == stream.device_index()) return;
  LaunchQueue::of(stream.device_index()).enqueue_task(1.0, [recording = recording_] {
    LaunchQueue::of(recording->device).wait(recording->sequence);
  });
}

bool Event::query() const {
  return recording_ == nullptr || LaunchQueue::of(recording_->device).done(recording_->sequence);
}

void Event::synchronize() const {
  if (recording_ == nullptr) return;
  LaunchQueue& queue = LaunchQueue::of(recording_->device);
  queue.wait(recording_->sequence);
  queue.raise_reported_error();
}

double Event::elapsed_ms(const Event& end) const {
  TORCH_CHECK(recording_ != nullptr && end.recording_ != nullptr, "elapsed_time: both events must have been recorded.");
  TORCH_CHECK(timing_ && end.timing_, "elapsed_time: both events must be created with enable_timing=True.");
  TORCH_CHECK(query() && end.query(), "elapsed_time: both events must be done: synchronize() first.");
  return static_cast<double>(end.recording_->nanoseconds - recording_->nanoseconds) * 1e-6;
}

}  // namespace neuron
