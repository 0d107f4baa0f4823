// SPDX-License-Identifier: Apache-2.0
#include "bindings.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>

#include "../eager/python_values.h"
#include "graph.h"

namespace py = pybind11;

namespace neuron {
namespace {

Sizes to_sizes(const py::handle& sequence) {
  Sizes sizes;
  for (const auto& item : sequence) sizes.push_back(item.cast<int64_t>());
  return sizes;
}

const at::Tensor& unpack(PyObject* object) {
  TORCH_CHECK_TYPE(THPVariable_Check(object), "a compiled graph takes tensors, got ",
                   py::str(py::type::of(py::handle(object))).cast<std::string>());
  return THPVariable_Unpack(object);
}

bool is_contiguous(const GraphInput& input) {
  int64_t expected = 1;
  for (size_t d = input.sizes.size(); d-- > 0; expected *= input.sizes[d]) {
    if (input.sizes[d] != 1 && input.strides[d] != expected) return false;
  }
  return expected == input.window;
}

// The place among a launch's operands where those of an input begin.
int operand_of(const std::vector<GraphInput>& inputs, int index) {
  int place = 0;
  for (int i = 0; i < index; ++i) {
    const GraphInput& input = inputs[static_cast<size_t>(i)];
    place += (input.scalar || input.window > 0) + input.has_delta;
  }
  return place;
}

// What Python says of a program: see torch_neuronx.dynamo.graph.
std::unique_ptr<GraphProgram> to_program(uintptr_t address, const py::list& inputs, const py::list& outputs,
                                         const py::list& returns, const py::list& constants, uint64_t random_increment,
                                         std::vector<std::string> operators, bool is_awaited) {
  auto program = std::make_unique<GraphProgram>();
  program->program = reinterpret_cast<Program*>(address);
  program->random_increment = random_increment;
  program->operators = std::move(operators);
  program->is_awaited = is_awaited;
  for (const py::handle item : constants) program->constants.push_back(unpack(item.ptr()));
  for (const py::handle item : inputs) {
    const auto described = py::cast<py::tuple>(item);
    GraphInput input;
    input.dtype = to_scalar_type(described[0].ptr());
    input.sizes = to_sizes(described[1]);
    input.strides = to_sizes(described[2]);
    input.scalar = described[3].cast<bool>();
    input.window = described[4].cast<int64_t>();
    input.has_delta = described[5].cast<bool>();
    if (!input.scalar && !input.has_delta && is_contiguous(input)) {
      input.whole_bytes = static_cast<size_t>(input.window) * c10::elementSize(input.dtype);
    }
    program->inputs.push_back(std::move(input));
  }
  for (const py::handle item : outputs) {
    const auto described = py::cast<py::tuple>(item);
    GraphOutput output;
    output.sizes = to_sizes(described[0]);
    output.strides = to_sizes(described[1]);
    output.dtype = to_scalar_type(described[2].ptr());
    if (const int target = described[3].cast<int>(); target >= 0) output.operand = operand_of(program->inputs, target);
    output.bytes = c10::elementSize(output.dtype);
    for (int64_t size : output.sizes) output.bytes *= static_cast<size_t>(size);
    program->outputs.push_back(std::move(output));
  }
  for (const py::handle item : returns) {
    GraphReturn described;
    if (!item.is_none()) {
      const auto tuple = py::cast<py::tuple>(item);
      described.source =
          tuple[0].cast<std::string>() == "input" ? GraphReturn::Source::Input : GraphReturn::Source::Output;
      described.index = tuple[1].cast<int>();
      if (!tuple[2].is_none()) {
        described.view = true;
        described.sizes = to_sizes(tuple[2]);
        described.strides = to_sizes(tuple[3]);
        described.offset = tuple[4].cast<int64_t>();
      }
    }
    program->returns.push_back(std::move(described));
  }
  return program;
}

// The graph's results, or None when no program suits the inputs yet.
py::object call(const Graph& graph, const py::list& arguments) {
  TORCH_CHECK_VALUE(arguments.size() == graph.input_count(), graph.name(), ": expected ", graph.input_count(),
                    " inputs, got ", arguments.size());
  // Keeps the inputs alive, whatever becomes of the list while other threads run.
  const auto held = py::reinterpret_steal<py::tuple>(PyList_AsTuple(arguments.ptr()));
  c10::SmallVector<const at::Tensor*, 64> tensors;
  tensors.reserve(held.size());
  for (size_t i = 0; i < held.size(); ++i) {
    tensors.push_back(&unpack(PyTuple_GET_ITEM(held.ptr(), static_cast<Py_ssize_t>(i))));
  }
  c10::SmallVector<Operand, 8> operands;
  c10::DeviceIndex device = -1;
  const GraphProgram* program = graph.match(tensors, operands, device);
  std::vector<at::Tensor> returned;
  if (program) {
    py::gil_scoped_release released;  // a full queue runs launches, which may wait for a compile thread
    returned = graph.launch(*program, tensors, operands, device);
  }
  if (!program) return py::none();
  py::list results(returned.size());
  for (size_t i = 0; i < returned.size(); ++i) {
    PyObject* object = nullptr;
    const GraphReturn& described = program->returns[i];
    if (described.source == GraphReturn::Source::None) {
      object = Py_NewRef(Py_None);
    } else if (described.source == GraphReturn::Source::Input && !described.view) {
      object = Py_NewRef(PyTuple_GET_ITEM(held.ptr(), described.index));
    } else {
      object = THPVariable_Wrap(std::move(returned[i]));
      if (!object) throw py::error_already_set();
    }
    PyList_SET_ITEM(results.ptr(), static_cast<Py_ssize_t>(i), object);
  }
  return results;
}

}  // namespace
}  // namespace neuron

void register_graph_bindings(PyObject* module) {
  using namespace neuron;
  auto m = py::reinterpret_borrow<py::module_>(module);
  py::class_<Graph>(m, "Graph")
      .def(py::init<std::string, size_t>(), py::arg("name"), py::arg("input_count"))
      .def("__call__", torch::wrap_pybind_function(&call))
      .def("add", [](Graph& graph, uintptr_t program, const py::list& inputs, const py::list& outputs,
                     const py::list& returns, const py::list& constants, uint64_t random_increment,
                     std::vector<std::string> operators, bool is_awaited) {
        graph.add(to_program(program, inputs, outputs, returns, constants, random_increment, std::move(operators),
                             is_awaited));
      });
  m.def("executed_graph_operators", &executed_graph_operators);
  m.def("clear_graph_operator_log", &clear_graph_operator_log);
  m.def("view_operand", [](const py::handle& tensor) {
    const GraphInput input = describe_input(unpack(tensor.ptr()));
    return py::make_tuple(input.scalar, input.window, input.has_delta);
  });
}
