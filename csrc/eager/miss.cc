// SPDX-License-Identifier: Apache-2.0
// Asks torch_neuronx.eager.miss about a key that was not met before.
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <c10/util/accumulate.h>

#include "dispatch.h"
#include "python_values.h"

namespace neuron {
namespace {

PyObject* handler() {
  static PyObject* function = [] {
    PythonObject module = owned(PyImport_ImportModule("torch_neuronx.eager.miss"));
    return owned(PyObject_GetAttrString(module.get(), "handle")).release();
  }();
  return function;
}

const char* scalar_name(ScalarKind kind) {
  switch (kind) {
    case ScalarKind::F32:
      return "float32";
    case ScalarKind::F64:
      return "float64";
    case ScalarKind::Bool:
      return "bool";
    default:
      return "int64";
  }
}

// While it lives, Dynamo does not look at the frames that this thread enters: an operator that a compiled function
// calls outside of its graphs may be new, and the handler is not the user's code.
class NotTraced {
 public:
  NotTraced() : before_(exchange(Py_None)) {}
  ~NotTraced() {
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    exchange(before_.get());
    PyErr_Restore(type, value, traceback);
  }
  NotTraced(const NotTraced&) = delete;
  NotTraced& operator=(const NotTraced&) = delete;

 private:
  static PythonObject exchange(PyObject* callback) {
    static PyObject* function = [] {
      const PythonObject module = owned(PyImport_ImportModule("torch._C._dynamo.eval_frame"));
      return owned(PyObject_GetAttrString(module.get(), "set_eval_frame")).release();
    }();
    return owned(PyObject_CallOneArg(function, callback));
  }
  PythonObject before_;
};

PythonObject python_arguments(const OperatorEntry& entry, const c10::IValue* arguments) {
  const auto& schema = entry.handle().schema().arguments();
  PythonObject tuple = owned(PyTuple_New(static_cast<Py_ssize_t>(schema.size())));
  for (size_t i = 0; i < schema.size(); ++i) {
    PyTuple_SET_ITEM(tuple.get(), static_cast<Py_ssize_t>(i), to_python(arguments[i], schema[i].real_type()).release());
  }
  return tuple;
}

PythonObject python_operands(const std::vector<OperandInfo>& infos) {
  PythonObject list = owned(PyList_New(static_cast<Py_ssize_t>(infos.size())));
  for (size_t i = 0; i < infos.size(); ++i) {
    const OperandInfo& info = infos[i];
    const char* kind = info.kind == OperandInfo::Kind::Window   ? "window"
                       : info.kind == OperandInfo::Kind::Delta  ? "delta"
                       : info.kind == OperandInfo::Kind::Length ? "length"
                                                                : scalar_name(info.scalar);
    PyList_SET_ITEM(list.get(), static_cast<Py_ssize_t>(i),
                    owned(Py_BuildValue("(siiLii)", kind, info.argument, info.element,
                                        static_cast<long long>(info.window), info.has_delta, info.updated))
                        .release());
  }
  return list;
}

c10::SmallVector<int64_t, 5> integers(PyObject* sequence) {
  PythonObject fast = owned(PySequence_Fast(sequence, "expected a sequence of integers"));
  c10::SmallVector<int64_t, 5> values;
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(fast.get()); ++i) {
    const long long value = PyLong_AsLongLong(PySequence_Fast_GET_ITEM(fast.get(), i));
    if (value == -1 && PyErr_Occurred()) raise_python_error();
    values.push_back(value);
  }
  return values;
}

// (sizes, strides, dtype, target) or None for an undefined tensor.
Output output_of(PyObject* described) {
  Output output;
  if (described == Py_None) return output;
  output.defined = true;
  output.sizes = integers(PyTuple_GetItem(described, 0));
  output.strides = integers(PyTuple_GetItem(described, 1));
  output.dtype = to_scalar_type(PyTuple_GetItem(described, 2));
  output.target = static_cast<int>(PyLong_AsLong(PyTuple_GetItem(described, 3)));
  output.numel = c10::multiply_integers(output.sizes.begin(), output.sizes.end());
  int64_t elements = output.numel > 0 ? 1 : 0;
  for (size_t d = 0; output.numel > 0 && d < output.sizes.size(); ++d) {
    elements += (output.sizes[d] - 1) * output.strides[d];
  }
  output.bytes = static_cast<size_t>(elements) * c10::elementSize(output.dtype);
  return output;
}

}  // namespace

std::unique_ptr<Entry> handle_miss(const OperatorEntry& op, const c10::IValue* arguments, const Call& call,
                                   const std::vector<OperandInfo>& infos) {
  InterpreterLock lock;
  const NotTraced not_traced;
  const PythonObject values = python_arguments(op, arguments);
  const PythonObject operands = python_operands(infos);
  const CallSite site = current_call_site();
  // (program id or None, outputs, returns, random increment), or None: run on the CPU.
  const PythonObject decision = owned(PyObject_CallFunction(
      handler(), "sOOy#sL", op.name().c_str(), values.get(), operands.get(),
      reinterpret_cast<const char*>(call.key.data()), static_cast<Py_ssize_t>(call.key.size() * sizeof(uint64_t)),
      describe(site).c_str(), static_cast<long long>(call.lengths.lanes)));
  auto entry = std::make_unique<Entry>();
  if (decision.get() == Py_None) {
    entry->fallback = true;
    return entry;
  }
  PyObject *program, *outputs, *returns;
  unsigned long long increment;
  if (!PyArg_ParseTuple(decision.get(), "OO!O!K", &program, &PyList_Type, &outputs, &PyList_Type, &returns,
                        &increment)) {
    raise_python_error();
  }
  if (program != Py_None) {
    entry->program = static_cast<Program*>(PyLong_AsVoidPtr(program));
    if (!entry->program && PyErr_Occurred()) raise_python_error();
  }
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(outputs); ++i) {
    entry->outputs.push_back(output_of(PyList_GET_ITEM(outputs, i)));
  }
  for (int64_t count : integers(returns)) entry->returns.push_back(count);
  entry->random_increment = increment;
  return entry;
}

}  // namespace neuron
