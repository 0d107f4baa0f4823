// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include <c10/core/Stream.h>

namespace neuron {

// One recording of an event: a place in the launch queue of a device, and, with timing, the moment
// at which the core came by.
struct Recording {
  c10::DeviceIndex device = 0;
  uint64_t sequence = 0;
  std::atomic<int64_t> nanoseconds{0};
};

// An event is its last recording. Work that refers to an earlier one keeps that alive.
class Event {
 public:
  explicit Event(bool timing) : timing_(timing) {}

  void record(const c10::Stream& stream);
  // Makes later work of the stream's device wait for the recording.
  void block(const c10::Stream& stream) const;
  bool query() const;
  void synchronize() const;
  bool timing() const { return timing_; }
  // Milliseconds of device time from this recording to the other's; both must be done.
  double elapsed_ms(const Event& end) const;

 private:
  bool timing_;
  std::shared_ptr<Recording> recording_;
};

}  // namespace neuron
