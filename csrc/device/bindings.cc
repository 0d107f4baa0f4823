// SPDX-License-Identifier: Apache-2.0
#include <device/bindings.h>

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>

#include <device/allocator.h>
#include <device/current_device.h>
#include <device/event.h>
#include <device/generator.h>
#include <device/launch_queue.h>
#include <device/stream.h>
#include <nrt/runtime.h>

namespace neuron {
namespace {

namespace py = pybind11;

// c10's index has 8 bits; a Python int that does not fit must not wrap around.
c10::DeviceIndex index(int device) {
  TORCH_CHECK(device >= -1 && device < 128, "neuron:", device, " is no valid device index.");
  return static_cast<c10::DeviceIndex>(device);
}

// Waits for the work in flight, so that no thread runs a program while the process goes down.
void drain_all() {
  if (!runtime_initialized()) return;
  LaunchQueue::for_each([](LaunchQueue& queue) { queue.drain(); });
}

}  // namespace

void bind_device(py::module_& m) {
  m.def("current_device", torch::wrap_pybind_function([] { return static_cast<int>(current_device()); }));
  m.def("set_device", torch::wrap_pybind_function([](int device) { set_current_device(index(device)); }));
  m.def("exchange_device",
        torch::wrap_pybind_function([](int device) { return static_cast<int>(exchange_device(index(device))); }));
  m.def("synchronize", torch::wrap_pybind_function([](int device) { synchronize_device(index(device)); }));
  m.def("drain_all", torch::wrap_pybind_function(&drain_all));

  m.def("empty_cache", torch::wrap_pybind_function([] { device_allocator().emptyCache(); }));
  m.def("memory_info",
        torch::wrap_pybind_function([](int device) { return device_allocator().getMemoryInfo(index(device)); }));
  m.def("describe_live_blocks", torch::wrap_pybind_function([](int device, size_t how_many) {
          check_device(index(device));
          return describe_live_blocks(index(device), how_many);
        }));

  // torch.Event.elapsed_time takes no subclass; torch.neuron.Event hands over the ids, which are the
  // addresses of the events (0: never recorded).
  m.def("elapsed_ms", torch::wrap_pybind_function([](uintptr_t start, uintptr_t end) {
          TORCH_CHECK(start != 0 && end != 0, "elapsed_time: both events must have been recorded.");
          return reinterpret_cast<const Event*>(start)->elapsed_ms(*reinterpret_cast<const Event*>(end));
        }));

  m.def("default_generator", torch::wrap_pybind_function([](int device) { return default_generator(index(device)); }));
}

}  // namespace neuron
