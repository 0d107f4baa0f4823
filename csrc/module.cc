// SPDX-License-Identifier: Apache-2.0
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>

#include <device/allocator.h>
#include <device/current_device.h>
#include <device/generator.h>
#include <device/launch_queue.h>
#include <device/stream.h>
#include <nrt/environment.h>
#include <nrt/runtime.h>

#if __has_include(<eager/bindings.h>)
#include <eager/bindings.h>
#define NEURON_HAS_EAGER 1
#endif

// The Python module torch_neuronx._C.
namespace neuron {
namespace {

namespace py = pybind11;

struct DeviceProperties {
  std::string name;
  std::string architecture;
  size_t total_memory = 0;
  int logical_core_size = 0;
  bool software = false;
};

// "trn2" for the families that NRT reports.
std::string family_name(uint32_t family) {
  switch (static_cast<nrt_instance_family_t>(family)) {
    case NRT_INSTANCE_INF1:
      return "inf1";
    case NRT_INSTANCE_TRN1:
    case NRT_INSTANCE_TRN1N:
      return "trn1";
    case NRT_INSTANCE_INF2:
    case NRT_INSTANCE_INF2E:
      return "inf2";
    case NRT_INSTANCE_TRN3:
    case NRT_INSTANCE_TRN3PDS98:
      return "trn3";
    case NRT_INSTANCE_UNKNOWN:
      return "unknown";
    default:
      return "trn2";
  }
}

std::string platform_target() {
  if (const auto target = environment::platform_target()) return *target;
  nrt_instance_info_t info{};
  check_status(runtime().get_instance_info(&info, sizeof(info)), "reading the instance type");
  return family_name(info.family);
}

DeviceProperties device_properties(c10::DeviceIndex device) {
  check_device(device);
  nrt_instance_info_t info{};
  check_status(runtime().get_instance_info(&info, sizeof(info)), "reading the instance type");
  DeviceProperties properties;
  properties.name = platform_target();
  properties.architecture = std::string(info.arch_name, strnlen(info.arch_name, sizeof(info.arch_name)));
  properties.total_memory = device_allocator().getMemoryInfo(device).second;
  properties.logical_core_size = environment::logical_core_size();
  properties.software = runtime_is_software();
  return properties;
}

// Waits for the work in flight, so that no thread runs a program while the process goes down.
void drain_all() {
  if (!runtime_initialized()) return;
  LaunchQueue::for_each([](LaunchQueue& queue) { queue.drain(); });
}

void bind_device(py::module_& m) {
  py::class_<DeviceProperties>(m, "DeviceProperties")
      .def_readonly("name", &DeviceProperties::name)
      .def_readonly("architecture", &DeviceProperties::architecture)
      .def_readonly("total_memory", &DeviceProperties::total_memory)
      .def_readonly("logical_core_size", &DeviceProperties::logical_core_size)
      .def_readonly("is_software", &DeviceProperties::software)
      .def("__repr__", [](const DeviceProperties& self) {
        return c10::str("DeviceProperties(name='", self.name, "', total_memory=", self.total_memory >> 20,
                        "MiB, logical_core_size=", self.logical_core_size,
                        ", is_software=", self.software ? "True" : "False", ")");
      });
  m.def("init", torch::wrap_pybind_function([] { runtime(); }));
  m.def("is_initialized", &runtime_initialized);
  m.def("is_in_bad_fork", &in_bad_fork);
  m.def("device_count", &visible_core_count);
  m.def("unavailable_reason", &unavailable_reason);
  m.def("runtime_description", torch::wrap_pybind_function(&runtime_description));
  m.def("is_software", torch::wrap_pybind_function(&runtime_is_software));
  m.def("platform_target", torch::wrap_pybind_function(&platform_target));
  m.def("logical_core_size", torch::wrap_pybind_function(&environment::logical_core_size));
  m.def("launch_blocking", &environment::launch_blocking);
  m.def("current_device", torch::wrap_pybind_function([] { return static_cast<int>(current_device()); }));
  m.def("set_device",
        torch::wrap_pybind_function([](int device) { set_current_device(static_cast<c10::DeviceIndex>(device)); }));
  m.def("exchange_device", torch::wrap_pybind_function([](int device) {
          return static_cast<int>(exchange_device(static_cast<c10::DeviceIndex>(device)));
        }));
  m.def("device_properties", torch::wrap_pybind_function([](int device) {
          return device_properties(static_cast<c10::DeviceIndex>(device));
        }));
  m.def("synchronize", torch::wrap_pybind_function_no_gil([](int device) {
          synchronize_device(static_cast<c10::DeviceIndex>(device));
        }));
  m.def("drain_all", torch::wrap_pybind_function(&drain_all));
}

void bind_memory(py::module_& m) {
  m.def("empty_cache", torch::wrap_pybind_function([] { device_allocator().emptyCache(); }));
  m.def("memory_info", torch::wrap_pybind_function([](int device) {
          return device_allocator().getMemoryInfo(static_cast<c10::DeviceIndex>(device));
        }));
  m.def("describe_live_blocks", torch::wrap_pybind_function([](int device, size_t how_many) {
          check_device(static_cast<c10::DeviceIndex>(device));
          return describe_live_blocks(static_cast<c10::DeviceIndex>(device), how_many);
        }));
}

}  // namespace
}  // namespace neuron

PYBIND11_MODULE(_C, m) {
  m.doc() = "PyTorch's device interfaces over the Neuron runtime.";
  neuron::bind_device(m);
  neuron::bind_memory(m);
  m.def("default_generator", torch::wrap_pybind_function([](int device) {
          return neuron::default_generator(static_cast<c10::DeviceIndex>(device));
        }));
#ifdef NEURON_HAS_EAGER
  register_eager_bindings(m.ptr());
#endif
}
