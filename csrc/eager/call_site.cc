// SPDX-License-Identifier: Apache-2.0
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <frameobject.h>

#if PY_VERSION_HEX >= 0x030B0000 && PY_VERSION_HEX < 0x030D0000
#define Py_BUILD_CORE 1
#include <internal/pycore_frame.h>
#undef Py_BUILD_CORE
#define NEURON_READS_FRAMES_DIRECTLY 1
#endif

#include "call_site.h"

#include <mutex>

#include <c10/util/flat_hash_map.h>

#include "python_values.h"

namespace neuron {
namespace {

// Code objects seen so far, each kept alive for good, and whether their frames are skipped.
struct CodeTable {
  std::mutex mutex;
  ska::flat_hash_map<const void*, bool> internal;
};
CodeTable& code_table() {
  static auto* table = new CodeTable;
  return *table;
}

// Frames of torch and of this package say nothing about the user's line.
bool is_internal_file(const std::string& file) {
  return file.find("/torch/") != std::string::npos || file.find("/torch_neuronx/") != std::string::npos ||
         file.rfind("<", 0) == 0;
}

bool remember(PyCodeObject* code) {
  const InterpreterLock lock;
  Py_INCREF(code);
  const char* file = PyUnicode_AsUTF8(code->co_filename);
  const bool internal = file && is_internal_file(file);
  if (!file) PyErr_Clear();
  return internal;
}

#ifdef NEURON_READS_FRAMES_DIRECTLY
bool is_internal(PyCodeObject* code) {
  CodeTable& table = code_table();
  {
    std::lock_guard<std::mutex> lock(table.mutex);
    auto found = table.internal.find(code);
    if (found != table.internal.end()) return found->second;
  }
  const bool internal = remember(code);  // outside the lock: takes the interpreter lock
  std::lock_guard<std::mutex> lock(table.mutex);
  table.internal[code] = internal;
  return internal;
}
#endif

}  // namespace

CallSite current_call_site() {
#ifdef NEURON_READS_FRAMES_DIRECTLY
  // While this thread is inside a C call nobody else changes its frames, so that they may be read
  // without the interpreter lock.
  if (!Py_IsInitialized()) return {};
  PyThreadState* state = PyGILState_GetThisThreadState();
  if (!state || !state->cframe) return {};
  constexpr int kDepth = 24;
  _PyInterpreterFrame* frame = state->cframe->current_frame;
  CallSite innermost;
  for (int depth = 0; frame && depth < kDepth; frame = frame->previous) {
    if (_PyFrame_IsIncomplete(frame)) continue;
    ++depth;
    CallSite site{frame->f_code, _PyInterpreterFrame_LASTI(frame) * static_cast<int>(sizeof(_Py_CODEUNIT))};
    if (!is_internal(frame->f_code)) return site;
    if (!innermost.code) innermost = site;
  }
  return innermost;
#else
  return {};
#endif
}

bool called_by_printing() {
  const InterpreterLock lock;
  const PythonObject frame(reinterpret_cast<PyObject*>(Py_XNewRef(PyEval_GetFrame())));
  if (!frame) return false;
  const PythonObject code(reinterpret_cast<PyObject*>(PyFrame_GetCode(reinterpret_cast<PyFrameObject*>(frame.get()))));
  const char* file = PyUnicode_AsUTF8(reinterpret_cast<PyCodeObject*>(code.get())->co_filename);
  return file && std::string(file).ends_with("torch/_tensor_str.py");
}

std::string describe(const CallSite& site) {
  if (!site.code || !Py_IsInitialized()) return "";
  const InterpreterLock lock;
  auto* code = static_cast<PyCodeObject*>(const_cast<void*>(site.code));
  const char* file = PyUnicode_AsUTF8(code->co_filename);
  const char* name = PyUnicode_AsUTF8(code->co_name);
  std::string text = std::string(file ? file : "?") + ":" + std::to_string(PyCode_Addr2Line(code, site.instruction)) +
                     " in " + (name ? name : "?");
  PyErr_Clear();
  return text;
}

}  // namespace neuron
