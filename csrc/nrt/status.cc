// SPDX-License-Identifier: Apache-2.0
#include <nrt/status.h>

#include <c10/util/StringUtil.h>

namespace neuron {
namespace {

struct StatusName {
  int code;
  const char* name;
  const char* meaning;
};

constexpr StatusName kStatusNames[] = {
    {0, "NRT_SUCCESS", ""},
    {1, "NRT_FAILURE", "the runtime failed"},
    {2, "NRT_INVALID", "an argument is not valid"},
    {3, "NRT_INVALID_HANDLE", "a handle is not valid"},
    {4, "NRT_RESOURCE", "out of device memory or another resource"},
    {5, "NRT_TIMEOUT", "the core did not finish in time (NEURON_RT_EXEC_TIMEOUT)"},
    {6, "NRT_HW_ERROR", "the hardware failed"},
    {7, "NRT_QUEUE_FULL", "too many requests in flight"},
    {9, "NRT_LOAD_NOT_ENOUGH_NC", "the program needs more cores than there are"},
    {10, "NRT_UNSUPPORTED_NEFF_VERSION", "the NEFF was made for another runtime"},
    {11, "NRT_FAIL_HOST_MEM_ALLOC", "out of host memory"},
    {13, "NRT_UNINITIALIZED", "the runtime was not initialised"},
    {14, "NRT_CLOSED", "the runtime was closed"},
    {15, "NRT_QUEUE_EMPTY", "no request in flight"},
    {101, "NRT_EXEC_UNIT_UNRECOVERABLE", "the core failed for good"},
    {1002, "NRT_EXEC_BAD_INPUT", "a tensor does not fit the program"},
    {1003, "NRT_EXEC_COMPLETED_WITH_NUM_ERR", "the result has numerical errors (NaN)"},
    {1004, "NRT_EXEC_COMPLETED_WITH_ERR", "the program ended with an error"},
    {1005, "NRT_EXEC_NC_BUSY", "another process uses the core"},
    {1006, "NRT_EXEC_OOB", "the program read or wrote out of bounds"},
    {1100, "NRT_COLL_PENDING", "a collective is still pending"},
    {1200, "NRT_EXEC_HW_ERR_COLLECTIVES", "the hardware failed in a collective"},
    {1201, "NRT_EXEC_HW_ERR_HBM_UE", "uncorrectable error of the device memory"},
    {1202, "NRT_EXEC_HW_ERR_NC_UE", "uncorrectable error of the core's memory"},
    {1203, "NRT_EXEC_HW_ERR_DMA_ABORT", "a transfer was aborted"},
    {1204, "NRT_EXEC_SW_NQ_OVERFLOW", "the notification queue overflowed"},
    {1205, "NRT_EXEC_HW_ERR_REPAIRABLE_HBM_UE", "repairable error of the device memory"},
    {1206, "NRT_NETWORK_PROXY_FAILURE", "the network failed"},
};

}  // namespace

std::string describe_status(NRT_STATUS status, std::string_view detail) {
  const int code = static_cast<int>(status);
  for (const StatusName& entry : kStatusNames) {
    if (entry.code == code) return c10::str(entry.name, " (", code, "): ", detail.empty() ? entry.meaning : detail);
  }
  return c10::str("NRT status ", code, detail.empty() ? "" : ": ", detail);
}

}  // namespace neuron
