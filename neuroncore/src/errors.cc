// SPDX-License-Identifier: Apache-2.0
#include "errors.h"

#include <neuroncore/neuroncore.h>

#include <cstdarg>
#include <cstdio>

namespace neuroncore {
namespace {

// A plain array: it has no destructor that could run before the last failing call of a thread.
thread_local char last_error[8192];

}  // namespace

NRT_STATUS Fail(NRT_STATUS status, const char* format, ...) {
  // Formatted apart first, because the arguments may point into the previous text.
  char text[sizeof(last_error)];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof(text), format, arguments);
  va_end(arguments);
  snprintf(last_error, sizeof(last_error), "%s", text);
  return status;
}

const char* LastError() { return last_error; }

}  // namespace neuroncore

NEURONCORE_EXPORT const char* neuroncore_last_error(void) { return neuroncore::LastError(); }

NEURONCORE_EXPORT const char* nrt_get_status_as_str(NRT_STATUS status) {
#define NEURONCORE_STATUS(name) \
  case name:                    \
    return #name;
  switch (status) {
    NEURONCORE_STATUS(NRT_SUCCESS)
    NEURONCORE_STATUS(NRT_FAILURE)
    NEURONCORE_STATUS(NRT_INVALID)
    NEURONCORE_STATUS(NRT_INVALID_HANDLE)
    NEURONCORE_STATUS(NRT_RESOURCE)
    NEURONCORE_STATUS(NRT_TIMEOUT)
    NEURONCORE_STATUS(NRT_HW_ERROR)
    NEURONCORE_STATUS(NRT_QUEUE_FULL)
    NEURONCORE_STATUS(NRT_LOAD_NOT_ENOUGH_NC)
    NEURONCORE_STATUS(NRT_UNSUPPORTED_NEFF_VERSION)
    NEURONCORE_STATUS(NRT_FAIL_HOST_MEM_ALLOC)
    NEURONCORE_STATUS(NRT_UNINITIALIZED)
    NEURONCORE_STATUS(NRT_CLOSED)
    NEURONCORE_STATUS(NRT_QUEUE_EMPTY)
    NEURONCORE_STATUS(NRT_EXEC_UNIT_UNRECOVERABLE)
    NEURONCORE_STATUS(NRT_EXEC_BAD_INPUT)
    NEURONCORE_STATUS(NRT_EXEC_COMPLETED_WITH_NUM_ERR)
    NEURONCORE_STATUS(NRT_EXEC_COMPLETED_WITH_ERR)
    NEURONCORE_STATUS(NRT_EXEC_NC_BUSY)
    NEURONCORE_STATUS(NRT_EXEC_OOB)
    NEURONCORE_STATUS(NRT_COLL_PENDING)
    NEURONCORE_STATUS(NRT_EXEC_HW_ERR_COLLECTIVES)
    NEURONCORE_STATUS(NRT_EXEC_HW_ERR_HBM_UE)
    NEURONCORE_STATUS(NRT_EXEC_HW_ERR_NC_UE)
    NEURONCORE_STATUS(NRT_EXEC_HW_ERR_DMA_ABORT)
    NEURONCORE_STATUS(NRT_EXEC_SW_NQ_OVERFLOW)
    NEURONCORE_STATUS(NRT_EXEC_HW_ERR_REPAIRABLE_HBM_UE)
    NEURONCORE_STATUS(NRT_NETWORK_PROXY_FAILURE)
  }
#undef NEURONCORE_STATUS
  return "NRT_UNKNOWN";
}
