// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <Python.h>

#include <memory>

#include <ATen/core/ivalue.h>
#include <ATen/core/function_schema.h>
#include <c10/core/ScalarType.h>

namespace neuron {

// An owned Python reference.
struct PythonDecref {
  void operator()(PyObject* object) const { Py_XDECREF(object); }
};
using PythonObject = std::unique_ptr<PyObject, PythonDecref>;

// Holds the interpreter lock.
class InterpreterLock {
 public:
  InterpreterLock() : state_(PyGILState_Ensure()) {}
  ~InterpreterLock() { PyGILState_Release(state_); }
  InterpreterLock(const InterpreterLock&) = delete;
  InterpreterLock& operator=(const InterpreterLock&) = delete;

 private:
  PyGILState_STATE state_;
};

// Raises the pending Python exception through C++ (back to Python as it was).
[[noreturn]] void raise_python_error();
// `object`, or raises the pending exception when it is null.
PythonObject owned(PyObject* object);

// An operator argument as Python sees it: tensors, numbers, dtypes, lists.
PythonObject to_python(const c10::IValue& value, const c10::TypePtr& type);

at::ScalarType to_scalar_type(PyObject* dtype);

}  // namespace neuron
