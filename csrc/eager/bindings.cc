// SPDX-License-Identifier: Apache-2.0
#include "bindings.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "../nrt/runtime.h"
#include "program.h"
#include "registration.h"

namespace py = pybind11;

namespace neuron {
namespace {

py::bytes compile(const std::string& text, const std::string& metadata, int optimize_level) {
  void* neff = nullptr;
  size_t size = 0;
  char* error = nullptr;
  NRT_STATUS status;
  {
    py::gil_scoped_release released;
    status = runtime().neuroncore_compile(text.data(), text.size(), metadata.empty() ? nullptr : metadata.c_str(),
                                          optimize_level, &neff, &size, &error);
  }
  if (status != NRT_SUCCESS) {
    const std::string message = error ? error : describe_status(status);
    if (error) runtime().neuroncore_free(error);
    throw std::runtime_error(message);
  }
  py::bytes result(static_cast<const char*>(neff), size);
  runtime().neuroncore_free(neff);
  return result;
}

Program& program_at(uintptr_t address) { return *reinterpret_cast<Program*>(address); }

}  // namespace
}  // namespace neuron

void register_eager_bindings(PyObject* module) {
  using namespace neuron;
  auto m = py::reinterpret_borrow<py::module_>(module);
  m.def("compile", &compile, py::arg("text"), py::arg("metadata_json"), py::arg("optimize_level"),
        "Compiles StableHLO text on the software core; returns the NEFF. Raises RuntimeError with the compiler's message.");
  m.def("compiler_fingerprint", [] {
    const auto function = runtime().neuroncore_fingerprint;
    return std::string(function ? function() : "");
  });
  m.def("has_kernel", [](const std::string& name) {
    const auto function = runtime().neuroncore_has_kernel;
    return function && function(name.c_str());
  });
  m.def("register_operator", &register_operator, py::arg("name"), py::arg("log_name"), py::arg("statics"),
        py::arg("updated"), py::arg("written"), py::arg("whole"), py::arg("with_kernel"));
  m.def("register_fallback", &register_fallback);
  m.def("new_program", [](std::string description, double estimated_us) {
    auto* program = new Program(std::move(description));  // lives as long as the process
    program->guess_estimate(estimated_us);
    return reinterpret_cast<uintptr_t>(program);
  });
  m.def("program_ready", [](uintptr_t program, std::string neff) { program_at(program).ready(std::move(neff)); });
  m.def("program_failed", [](uintptr_t program, std::string message) { program_at(program).failed(std::move(message)); });
  m.def("executed_operators", &executed_operators);
  m.def("fallback_operators", &fallback_operators);
  m.def("clear_operator_log", &clear_operator_log);
}
