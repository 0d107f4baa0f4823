// SPDX-License-Identifier: Apache-2.0
#include "python_values.h"

#include <torch/csrc/DynamicTypes.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/tensor_memoryformats.h>

namespace neuron {

void raise_python_error() {
  python_error error;
  error.persist();
  throw std::move(error);
}

PythonObject owned(PyObject* object) {
  if (!object) raise_python_error();
  return PythonObject(object);
}

at::ScalarType to_scalar_type(PyObject* dtype) {
  TORCH_CHECK(THPDtype_Check(dtype), "expected a torch.dtype");
  return reinterpret_cast<THPDtype*>(dtype)->scalar_type;
}

namespace {

PythonObject none() { return PythonObject(Py_NewRef(Py_None)); }

PythonObject integer(int64_t number, c10::TypeKind kind) {
  switch (kind) {
    case c10::TypeKind::ScalarTypeType:
      return PythonObject(
          Py_NewRef(reinterpret_cast<PyObject*>(torch::getTHPDtype(static_cast<at::ScalarType>(number)))));
    case c10::TypeKind::LayoutType:
      return PythonObject(Py_NewRef(reinterpret_cast<PyObject*>(torch::getTHPLayout(static_cast<at::Layout>(number)))));
    case c10::TypeKind::MemoryFormatType:
      return PythonObject(Py_NewRef(torch::utils::getTHPMemoryFormat(static_cast<at::MemoryFormat>(number))));
    default:
      return owned(PyLong_FromLongLong(number));
  }
}

}  // namespace

PythonObject to_python(const c10::IValue& value, const c10::TypePtr& type) {
  if (auto optional = type->cast<c10::OptionalType>()) return to_python(value, optional->getElementType());
  if (value.isNone()) return none();
  if (value.isTensor()) {
    const at::Tensor& tensor = value.toTensor();
    if (!tensor.defined()) return none();
    if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) return to_python(tensor.item(), type);
    return owned(THPVariable_Wrap(tensor));
  }
  if (value.isBool()) return owned(PyBool_FromLong(value.toBool()));
  if (value.isInt()) return integer(value.toInt(), type->kind());
  if (value.isSymInt()) return integer(value.toSymInt().guard_int(__FILE__, __LINE__), type->kind());
  if (value.isDouble()) return owned(PyFloat_FromDouble(value.toDouble()));
  if (value.isComplexDouble()) {
    const auto number = value.toComplexDouble();
    return owned(PyComplex_FromDoubles(number.real(), number.imag()));
  }
  if (value.isString()) return owned(PyUnicode_FromString(value.toStringRef().c_str()));
  if (value.isDevice() || value.isGenerator()) return none();  // the handler works on meta tensors
  if (value.isList()) {
    const auto list = type->cast<c10::ListType>();
    const c10::TypePtr element = list ? list->getElementType() : c10::AnyType::get();
    const c10::List<c10::IValue> items = value.toList();
    PythonObject result = owned(PyList_New(static_cast<Py_ssize_t>(items.size())));
    for (size_t i = 0; i < items.size(); ++i) {
      PyList_SET_ITEM(result.get(), static_cast<Py_ssize_t>(i), to_python(items.get(i), element).release());
    }
    return result;
  }
  TORCH_CHECK_NOT_IMPLEMENTED(false, "an argument of type ", value.tagKind(), " has no Python form");
}

}  // namespace neuron
