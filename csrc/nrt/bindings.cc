// SPDX-License-Identifier: Apache-2.0
#include <nrt/bindings.h>

#include <torch/csrc/Exceptions.h>

#include <nrt/compiler.h>
#include <nrt/environment.h>
#include <nrt/gil.h>
#include <nrt/runtime.h>

namespace neuron {
namespace {

namespace py = pybind11;

py::bytes compile_to_bytes(const std::string& mlir, const std::string& metadata, int optimize_level) {
  std::string neff;
  {
    GilRelease no_gil;
    neff = compile(mlir, metadata, optimize_level);
  }
  return py::bytes(neff);
}

py::list kernel_name_list() {
  py::list names;
  for (const std::string& name : kernel_names()) names.append(name);
  return names;
}

}  // namespace

void bind_runtime(py::module_& m) {
  m.def("init", torch::wrap_pybind_function([] { runtime(); }));
  m.def("is_initialized", &runtime_initialized);
  m.def("is_in_bad_fork", &in_bad_fork);
  m.def("device_count", &visible_core_count);
  m.def("unavailable_reason", &unavailable_reason);
  m.def("runtime_description", torch::wrap_pybind_function(&runtime_description));
  m.def("runtime_is_software", torch::wrap_pybind_function(&runtime_is_software));
  m.def("platform_target", torch::wrap_pybind_function(&platform_target));
  m.def("launch_blocking", &environment::launch_blocking);
  m.def("compile", torch::wrap_pybind_function(&compile_to_bytes), py::arg("mlir"), py::arg("metadata"),
        py::arg("optimize_level"));
  m.def("compiler_fingerprint", torch::wrap_pybind_function(&compiler_fingerprint));
  m.def("kernel_names", &kernel_name_list);
}

}  // namespace neuron
