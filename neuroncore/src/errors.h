// SPDX-License-Identifier: Apache-2.0
//
// Statuses with a reason: every failing path goes through Fail(), which keeps the text for neuroncore_last_error().
#pragma once

#include <nrt/nrt_status.h>

#include <string>

#define NEURONCORE_EXPORT extern "C" __attribute__((visibility("default")))

namespace neuroncore {

// Remembers the text (printf style) for this thread and returns the status.
[[gnu::format(printf, 2, 3)]] NRT_STATUS Fail(NRT_STATUS status, const char* format, ...);

// What neuroncore_last_error() returns.
const char* LastError();

// Runs an ABI function's body: no C++ exception may reach a C caller.
template <class Body>
NRT_STATUS Guarded(const char* function, Body&& body) {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return Fail(NRT_RESOURCE, "%s: the host is out of memory", function);
  } catch (const std::exception& exception) {
    return Fail(NRT_FAILURE, "%s: %s", function, exception.what());
  }
}

}  // namespace neuroncore
