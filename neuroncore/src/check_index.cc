// SPDX-License-Identifier: Apache-2.0
//
// @neuroncore.check_index: XLA clamps indices that are out of bounds; PyTorch raises. This makes the device raise.

#include <cinttypes>
#include <cstdio>
#include <cstdlib>

#include "kernels.h"

namespace neuroncore {
namespace {

template <class Index>
int Check(const neuroncore_kernel_call_t& call, int64_t limit, bool wrap, const std::string& op, char* error,
          size_t error_size) {
  int64_t count = 1;
  for (int32_t i = 0; i < call.inputs[0].rank; ++i) count *= call.inputs[0].dims[i];
  auto* index = static_cast<const Index*>(call.inputs[0].data);
  auto* output = static_cast<Index*>(call.outputs[0].data);
  int64_t lowest = wrap ? -limit : 0;
  for (int64_t i = 0; i < count; ++i) {
    int64_t value = index[i];
    if (value < lowest || value >= limit) {
      snprintf(error, error_size, "%s: index %" PRId64 " is out of bounds for a dimension of size %" PRId64, op.c_str(),
               value, limit);
      return kKernelOutOfBounds;
    }
    output[i] = static_cast<Index>(value < 0 ? value + limit : value);
  }
  return 0;
}

}  // namespace

int CheckIndex(void*, const neuroncore_kernel_call_t* call, char* error, size_t error_size) {
  std::string limit(ConfigValue(call->config, "limit"));
  if (call->num_inputs != 1 || call->num_outputs != 1 || limit.empty() ||
      call->inputs[0].element_type != call->outputs[0].element_type) {
    snprintf(error, error_size, "expected one index tensor and \"limit=...\" in config, got \"%s\"", call->config);
    return 1;
  }
  int64_t bound = strtoll(limit.c_str(), nullptr, 10);
  bool wrap = ConfigValue(call->config, "wrap") == "1";
  std::string op(ConfigValue(call->config, "op"));
  if (call->inputs[0].element_type == NEURONCORE_TYPE_S32) {
    return Check<int32_t>(*call, bound, wrap, op, error, error_size);
  }
  if (call->inputs[0].element_type == NEURONCORE_TYPE_S64) {
    return Check<int64_t>(*call, bound, wrap, op, error, error_size);
  }
  snprintf(error, error_size, "the index is neither i32 nor i64");
  return 1;
}

}  // namespace neuroncore
