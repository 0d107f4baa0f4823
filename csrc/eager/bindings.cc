// SPDX-License-Identifier: Apache-2.0
#include "bindings.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "program.h"
#include "registration.h"

namespace py = pybind11;

namespace neuron {
namespace {

Program& program_at(uintptr_t address) { return *reinterpret_cast<Program*>(address); }

}  // namespace
}  // namespace neuron

void register_eager_bindings(PyObject* module) {
  using namespace neuron;
  auto m = py::reinterpret_borrow<py::module_>(module);
  m.def("register_operator", &register_operator, py::arg("name"), py::arg("log_name"), py::arg("statics"),
        py::arg("updated"), py::arg("written"), py::arg("whole"), py::arg("with_kernel"), py::arg("lengths"));
  m.def("ensure_operators_registered", &ensure_operators_registered);
  m.def("register_fallback", &register_fallback);
  m.def(
      "new_program",
      [](std::string description, double estimated_us, bool is_graph) {
        auto* program = new Program(std::move(description), is_graph);  // lives as long as the process
        program->guess_estimate(estimated_us);
        return reinterpret_cast<uintptr_t>(program);
      },
      py::arg("description"), py::arg("estimated_us"), py::arg("is_graph") = false);
  m.def("program_ready", [](uintptr_t program, std::string neff) { program_at(program).ready(std::move(neff)); });
  m.def(
      "preload_program", [](uintptr_t program, int device) { program_at(program).preload(device); },
      py::call_guard<py::gil_scoped_release>());
  m.def("program_failed",
        [](uintptr_t program, std::string message) { program_at(program).failed(std::move(message)); });
  m.def("executed_operators", &executed_operators);
  m.def("fallback_operators", &fallback_operators);
  m.def("clear_operator_log", &clear_operator_log);
}
