// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdio>
#include <exception>

#include <c10/util/Exception.h>

namespace neuron {

// Runs `function` within a callback of the software core, which no exception may leave. Returns what the core
// expects: 0, or 1 and a message.
template <typename Function>
int answer(char* error, size_t error_size, const Function& function) {
  try {
    function();
    return 0;
  } catch (const c10::Error& failure) {
    std::snprintf(error, error_size, "%s", failure.what_without_backtrace());
  } catch (const std::exception& failure) {
    std::snprintf(error, error_size, "%s", failure.what());
  } catch (...) {
    std::snprintf(error, error_size, "unknown exception");
  }
  return 1;
}

}  // namespace neuron
