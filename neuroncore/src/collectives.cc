// SPDX-License-Identifier: Apache-2.0
//
// Collectives over host memory. The bytes move through a transport that the embedding program gives us; here is what
// joins it to the NRT functions and to custom calls in programs.

#include <neuroncore/neuroncore.h>
#include <nrt/nrt.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "core.h"
#include "errors.h"
#include "kernels.h"

namespace neuroncore {
namespace {

struct Transport {
  std::mutex mutex;
  neuroncore_collectives_t table = {};
  neuroncore_group_t global = {0, 0, 1};
};

Transport& TheTransport() {
  static auto* transport = new Transport;
  return *transport;
}

neuroncore_collectives_t Table() {
  std::lock_guard guard(TheTransport().mutex);
  return TheTransport().table;
}

// Describes group `id`. False after writing a message.
bool Describe(const neuroncore_collectives_t& table, int64_t id, neuroncore_group_t* group, char* error,
              size_t error_size) {
  *group = {id, 0, 1};
  if (table.describe_group != nullptr) {
    if (table.describe_group(table.context, group, error, error_size) != 0) return false;
  } else if (id == 0) {
    std::lock_guard guard(TheTransport().mutex);
    *group = TheTransport().global;
  } else {
    snprintf(error, error_size, "the transport knows no groups, so there is no group %lld", static_cast<long long>(id));
    return false;
  }
  if (group->size >= 1 && group->rank >= 0 && group->rank < group->size) return true;
  snprintf(error, error_size, "group %lld has rank %d of %d", static_cast<long long>(id), group->rank, group->size);
  return false;
}

int Missing(const char* operation, const neuroncore_group_t& group, char* error, size_t error_size) {
  snprintf(error, error_size, "%s over %d ranks needs a transport (neuroncore_set_collectives) that has it", operation,
           group.size);
  return 1;
}

size_t Elements(const neuroncore_buffer_t& buffer) {
  size_t count = 1;
  for (int32_t i = 0; i < buffer.rank; ++i) count *= static_cast<size_t>(buffer.dims[i]);
  return count;
}

size_t ElementBytes(int32_t element_type) {
  switch (element_type) {
    case NEURONCORE_TYPE_S16:
    case NEURONCORE_TYPE_U16:
    case NEURONCORE_TYPE_F16:
    case NEURONCORE_TYPE_BF16:
      return 2;
    case NEURONCORE_TYPE_S32:
    case NEURONCORE_TYPE_U32:
    case NEURONCORE_TYPE_F32:
      return 4;
    case NEURONCORE_TYPE_S64:
    case NEURONCORE_TYPE_U64:
    case NEURONCORE_TYPE_F64:
    case NEURONCORE_TYPE_C64:
      return 8;
    case NEURONCORE_TYPE_C128:
      return 16;
    default:
      return 1;
  }
}

size_t Bytes(const neuroncore_buffer_t& buffer) { return Elements(buffer) * ElementBytes(buffer.element_type); }

bool ParseReduce(std::string_view name, neuroncore_reduce_t* reduce) {
  constexpr std::pair<std::string_view, neuroncore_reduce_t> kNames[] = {
      {"sum", NEURONCORE_REDUCE_SUM}, {"product", NEURONCORE_REDUCE_PRODUCT}, {"min", NEURONCORE_REDUCE_MIN},
      {"max", NEURONCORE_REDUCE_MAX}, {"and", NEURONCORE_REDUCE_AND},         {"or", NEURONCORE_REDUCE_OR},
      {"xor", NEURONCORE_REDUCE_XOR}, {"average", NEURONCORE_REDUCE_AVERAGE},
  };
  for (auto [text, value] : kNames) {
    if (text != name) continue;
    *reduce = value;
    return true;
  }
  return false;
}

// What every collective custom call starts with: one operand, one result and a group.
struct CollectiveCall {
  neuroncore_collectives_t table;
  neuroncore_group_t group;
  const neuroncore_buffer_t* input;
  const neuroncore_buffer_t* output;

  bool Begin(const neuroncore_kernel_call_t* call, char* error, size_t error_size) {
    // A second operand and a second result, of any type, only put collectives of a program in order.
    if (call->num_inputs < 1 || call->num_inputs > 2 || call->num_outputs < 1 || call->num_outputs > 2) {
      snprintf(error, error_size, "expected an operand and a result, and perhaps a token each, got %zu and %zu",
               call->num_inputs, call->num_outputs);
      return false;
    }
    if (call->num_outputs == 2) memset(call->outputs[1].data, 0, Bytes(call->outputs[1]));
    input = &call->inputs[0];
    output = &call->outputs[0];
    table = Table();
    std::string id(ConfigValue(call->config, "group"));
    return Describe(table, strtoll(id.c_str(), nullptr, 10), &group, error, error_size);
  }

  // `input_parts` and `output_parts`: sizes in shares, of which the group's size is put for 0.
  bool Fits(size_t input_parts, size_t output_parts, char* error, size_t error_size) const {
    size_t size = static_cast<size_t>(group.size);
    if (Bytes(*input) * (output_parts == 0 ? size : output_parts) ==
        Bytes(*output) * (input_parts == 0 ? size : input_parts)) {
      return true;
    }
    snprintf(error, error_size, "an operand of %zu bytes and a result of %zu do not fit a group of %d", Bytes(*input),
             Bytes(*output), group.size);
    return false;
  }

  // The bytes of each rank's part, of elements listed as "3,0,5". A buffer for no elements has one that is not used.
  bool Parts(const char* name, std::string_view list, const neuroncore_buffer_t& buffer, std::vector<size_t>* bytes,
             char* error, size_t error_size) const {
    size_t total = 0;
    for (size_t start = 0; start <= list.size();) {
      size_t end = std::min(list.find(',', start), list.size());
      size_t elements = strtoull(std::string(list.substr(start, end - start)).c_str(), nullptr, 10);
      total += elements;
      bytes->push_back(elements * ElementBytes(buffer.element_type));
      start = end + 1;
    }
    if (bytes->size() == static_cast<size_t>(group.size) && (total == Elements(buffer) || total == 0)) return true;
    snprintf(error, error_size, "%s=%.*s does not cut %zu elements for a group of %d", name,
             static_cast<int>(list.size()), list.data(), Elements(buffer), group.size);
    return false;
  }

  // A group of one needs no transport: every collective is the identity.
  bool Alone() const {
    if (group.size != 1) return false;
    if (output->data != input->data) memcpy(output->data, input->data, Bytes(*input));
    return true;
  }
};

// The body of the NRT functions: the group of the call, and a transport unless it has one member.
template <class Operation>
NRT_STATUS Collective(const char* function, int32_t vnc, uint32_t rank, uint32_t size, Operation&& operation) {
  return Guarded(function, [&]() -> NRT_STATUS {
    if (NRT_STATUS status = CheckRunning(function)) return status;
    if (GetCore(function, vnc) == nullptr) return NRT_INVALID;
    if (size == 0 || rank >= size) return Fail(NRT_INVALID, "%s: there is no rank %u of %u", function, rank, size);
    neuroncore_group_t group = {0, static_cast<int32_t>(rank), static_cast<int32_t>(size)};
    char error[1024] = "";
    if (operation(Table(), group, error, sizeof(error)) == 0) return NRT_SUCCESS;
    return Fail(NRT_FAILURE, "%s: %s", function, error[0] != '\0' ? error : "the transport failed");
  });
}

}  // namespace

int AllReduceKernel(void*, const neuroncore_kernel_call_t* call, char* error, size_t error_size) {
  CollectiveCall c;
  neuroncore_reduce_t reduce;
  if (!c.Begin(call, error, error_size) || !c.Fits(1, 1, error, error_size)) return 1;
  if (!ParseReduce(ConfigValue(call->config, "op"), &reduce)) {
    snprintf(error, error_size, "no reduction named in \"%s\"", call->config);
    return 1;
  }
  if (c.Alone()) return 0;
  if (c.table.all_reduce == nullptr) return Missing("all_reduce", c.group, error, error_size);
  return c.table.all_reduce(c.table.context, &c.group, reduce, c.input->element_type, c.input->data, c.output->data,
                            Elements(*c.input), error, error_size);
}

int AllGatherKernel(void*, const neuroncore_kernel_call_t* call, char* error, size_t error_size) {
  CollectiveCall c;
  if (!c.Begin(call, error, error_size) || !c.Fits(1, 0, error, error_size)) return 1;
  if (c.Alone()) return 0;
  if (c.table.all_gather == nullptr) return Missing("all_gather", c.group, error, error_size);
  return c.table.all_gather(c.table.context, &c.group, c.input->data, c.output->data, Bytes(*c.input), error,
                            error_size);
}

int ReduceScatterKernel(void*, const neuroncore_kernel_call_t* call, char* error, size_t error_size) {
  CollectiveCall c;
  neuroncore_reduce_t reduce;
  if (!c.Begin(call, error, error_size) || !c.Fits(0, 1, error, error_size)) return 1;
  if (!ParseReduce(ConfigValue(call->config, "op"), &reduce)) {
    snprintf(error, error_size, "no reduction named in \"%s\"", call->config);
    return 1;
  }
  if (c.Alone()) return 0;
  if (c.table.reduce_scatter == nullptr) return Missing("reduce_scatter", c.group, error, error_size);
  return c.table.reduce_scatter(c.table.context, &c.group, reduce, c.input->element_type, c.input->data, c.output->data,
                                Elements(*c.output), error, error_size);
}

int AllToAllKernel(void*, const neuroncore_kernel_call_t* call, char* error, size_t error_size) {
  CollectiveCall c;
  std::string_view send = ConfigValue(call->config, "send");
  std::string_view receive = ConfigValue(call->config, "receive");
  bool equal = send.empty() && receive.empty();
  if (!c.Begin(call, error, error_size)) return 1;
  if ((equal || c.group.size == 1) && !c.Fits(1, 1, error, error_size)) return 1;
  std::vector<size_t> input_bytes, output_bytes;
  if (equal) {
    size_t ranks = static_cast<size_t>(c.group.size);
    input_bytes = output_bytes = std::vector<size_t>(ranks, Bytes(*c.input) / ranks);
  } else if (!c.Parts("send", send, *c.input, &input_bytes, error, error_size) ||
             !c.Parts("receive", receive, *c.output, &output_bytes, error, error_size)) {
    return 1;
  }
  if (c.Alone()) return 0;
  if (c.table.all_to_all == nullptr) return Missing("all_to_all", c.group, error, error_size);
  return c.table.all_to_all(c.table.context, &c.group, c.input->data, input_bytes.data(), c.output->data,
                            output_bytes.data(), error, error_size);
}

int BroadcastKernel(void*, const neuroncore_kernel_call_t* call, char* error, size_t error_size) {
  CollectiveCall c;
  if (!c.Begin(call, error, error_size) || !c.Fits(1, 1, error, error_size)) return 1;
  if (c.Alone()) return 0;
  if (c.table.broadcast == nullptr) return Missing("broadcast", c.group, error, error_size);
  std::string root(ConfigValue(call->config, "root"));
  if (c.output->data != c.input->data) memcpy(c.output->data, c.input->data, Bytes(*c.input));
  return c.table.broadcast(c.table.context, &c.group, atoi(root.c_str()), c.output->data, Bytes(*c.output), error,
                           error_size);
}

}  // namespace neuroncore

using namespace neuroncore;

NEURONCORE_EXPORT NRT_STATUS neuroncore_set_collectives(const neuroncore_collectives_t* table) {
  Transport& transport = TheTransport();
  std::lock_guard guard(transport.mutex);
  transport.table = {};
  if (table != nullptr) memcpy(&transport.table, table, std::min(table->struct_size, sizeof(transport.table)));
  return NRT_SUCCESS;
}

NEURONCORE_EXPORT NRT_STATUS nrt_build_global_comm(int32_t vnc, uint32_t rank, uint32_t size) {
  return Collective(
      "nrt_build_global_comm", vnc, rank, size,
      [](const neuroncore_collectives_t& table, const neuroncore_group_t& group, char* error, size_t error_size) {
        if (group.size > 1 && table.struct_size == 0) {
          return Missing("a global communicator", group, error, error_size);
        }
        std::lock_guard guard(TheTransport().mutex);
        TheTransport().global = group;
        return 0;
      });
}

NEURONCORE_EXPORT NRT_STATUS nrt_cc_global_comm_init(uint32_t vnc, uint32_t rank, uint32_t size) {
  return nrt_build_global_comm(static_cast<int32_t>(vnc), rank, size);
}

NEURONCORE_EXPORT NRT_STATUS nrt_barrier(int32_t vnc, uint32_t rank, uint32_t size) {
  return Collective(
      "nrt_barrier", vnc, rank, size,
      [](const neuroncore_collectives_t& table, const neuroncore_group_t& group, char* error, size_t error_size) {
        if (group.size == 1) return 0;
        if (table.barrier == nullptr) return Missing("a barrier", group, error, error_size);
        return table.barrier(table.context, &group, error, error_size);
      });
}

NEURONCORE_EXPORT NRT_STATUS nrt_all_gather(int32_t vnc, uint32_t rank, uint32_t size, uint32_t bytes, void* input,
                                            void* output) {
  if (bytes > 0 && (input == nullptr || output == nullptr)) return Fail(NRT_INVALID, "nrt_all_gather: null argument");
  return Collective(
      "nrt_all_gather", vnc, rank, size,
      [&](const neuroncore_collectives_t& table, const neuroncore_group_t& group, char* error, size_t error_size) {
        if (group.size == 1) {
          memmove(output, input, bytes);
          return 0;
        }
        if (table.all_gather == nullptr) return Missing("an all-gather", group, error, error_size);
        return table.all_gather(table.context, &group, input, output, bytes, error, error_size);
      });
}
