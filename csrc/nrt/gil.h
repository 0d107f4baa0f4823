// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <Python.h>

namespace neuron {

// Lets go of the GIL for a scope, if this thread holds it. Whatever waits must do so: a program
// that is still being compiled may need the GIL to finish.
class GilRelease {
 public:
  GilRelease() {
    if (Py_IsInitialized() && PyGILState_Check()) state_ = PyEval_SaveThread();
  }
  ~GilRelease() {
    if (state_ != nullptr) PyEval_RestoreThread(state_);
  }
  GilRelease(const GilRelease&) = delete;
  GilRelease& operator=(const GilRelease&) = delete;

 private:
  PyThreadState* state_ = nullptr;
};

}  // namespace neuron
