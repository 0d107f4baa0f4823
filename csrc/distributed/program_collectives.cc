// SPDX-License-Identifier: Apache-2.0
#include <distributed/program_collectives.h>

#include <mutex>
#include <numeric>
#include <string>
#include <vector>

#include <c10/util/Exception.h>

#include <distributed/process_group.h>
#include <nrt/callback.h>
#include <nrt/runtime.h>

namespace neuron::distributed {
namespace {

c10::ScalarType dtype_of(int32_t element_type) {
  switch (element_type) {
    case NEURONCORE_TYPE_PRED:
      return c10::ScalarType::Bool;
    case NEURONCORE_TYPE_S8:
      return c10::ScalarType::Char;
    case NEURONCORE_TYPE_S16:
      return c10::ScalarType::Short;
    case NEURONCORE_TYPE_S32:
      return c10::ScalarType::Int;
    case NEURONCORE_TYPE_S64:
      return c10::ScalarType::Long;
    case NEURONCORE_TYPE_U8:
      return c10::ScalarType::Byte;
    case NEURONCORE_TYPE_U16:
      return c10::ScalarType::UInt16;
    case NEURONCORE_TYPE_U32:
      return c10::ScalarType::UInt32;
    case NEURONCORE_TYPE_U64:
      return c10::ScalarType::UInt64;
    case NEURONCORE_TYPE_F16:
      return c10::ScalarType::Half;
    case NEURONCORE_TYPE_F32:
      return c10::ScalarType::Float;
    case NEURONCORE_TYPE_F64:
      return c10::ScalarType::Double;
    case NEURONCORE_TYPE_BF16:
      return c10::ScalarType::BFloat16;
    case NEURONCORE_TYPE_C64:
      return c10::ScalarType::ComplexFloat;
    case NEURONCORE_TYPE_C128:
      return c10::ScalarType::ComplexDouble;
    case NEURONCORE_TYPE_F8E5M2:
      return c10::ScalarType::Float8_e5m2;
    case NEURONCORE_TYPE_F8E4M3FN:
      return c10::ScalarType::Float8_e4m3fn;
    case NEURONCORE_TYPE_F8E5M2FNUZ:
      return c10::ScalarType::Float8_e5m2fnuz;
    case NEURONCORE_TYPE_F8E4M3FNUZ:
      return c10::ScalarType::Float8_e4m3fnuz;
    default:
      TORCH_CHECK(false, "a collective in a program reduces elements of type ", element_type,
                  ", which PyTorch does not have.");
  }
}

Reduction reduction_of(neuroncore_reduce_t op) {
  switch (op) {
    case NEURONCORE_REDUCE_SUM:
      return Reduction::Sum;
    case NEURONCORE_REDUCE_PRODUCT:
      return Reduction::Product;
    case NEURONCORE_REDUCE_MIN:
      return Reduction::Min;
    case NEURONCORE_REDUCE_MAX:
      return Reduction::Max;
    case NEURONCORE_REDUCE_AND:
      return Reduction::And;
    case NEURONCORE_REDUCE_OR:
      return Reduction::Or;
    case NEURONCORE_REDUCE_XOR:
      return Reduction::Xor;
    case NEURONCORE_REDUCE_AVERAGE:
      return Reduction::Average;
  }
  TORCH_CHECK(false, "a collective in a program has the unknown reduction ", static_cast<int>(op), ".");
}

template <typename Body>
void run(const neuroncore_group_t& group, Kind kind, const Body& body, c10::ScalarType dtype = c10::ScalarType::Byte,
         size_t elements = 0, Reduction reduction = Reduction::Sum, int root = -1) {
  Collective call;
  call.kind = kind;
  call.dtype = dtype;
  call.reduction = reduction;
  call.root = root;
  call.elements = static_cast<int64_t>(elements);
  call.set_shape({call.elements});
  ProcessGroupNeuron::by_ordinal(group.id)->run_in_program(call, body);
}

int describe_group(void*, neuroncore_group_t* group, char* error, size_t error_size) {
  return answer(error, error_size, [&] {
    const auto found = ProcessGroupNeuron::by_ordinal(group->id);
    group->rank = found->getRank();
    group->size = found->getSize();
  });
}

int all_reduce(void*, const neuroncore_group_t* group, neuroncore_reduce_t op, int32_t element_type, const void* input,
               void* output, size_t count, char* error, size_t error_size) {
  return answer(error, error_size, [&] {
    run(
        *group, Kind::AllReduce,
        [&](Transport& transport, const Collective& call, Deadline deadline) {
          transport.all_reduce(call, deadline, static_cast<const char*>(input), static_cast<char*>(output));
        },
        dtype_of(element_type), count, reduction_of(op));
  });
}

int all_gather(void*, const neuroncore_group_t* group, const void* input, void* output, size_t bytes, char* error,
               size_t error_size) {
  return answer(error, error_size, [&] {
    run(
        *group, Kind::AllGather,
        [&](Transport& transport, const Collective& call, Deadline deadline) {
          transport.exchange(call, deadline, SendBytes{static_cast<const char*>(input), bytes},
                             equal_parts(static_cast<char*>(output), bytes, static_cast<size_t>(transport.size())));
        },
        c10::ScalarType::Byte, bytes);
  });
}

int reduce_scatter(void*, const neuroncore_group_t* group, neuroncore_reduce_t op, int32_t element_type,
                   const void* input, void* output, size_t count, char* error, size_t error_size) {
  return answer(error, error_size, [&] {
    run(
        *group, Kind::ReduceScatter,
        [&](Transport& transport, const Collective& call, Deadline deadline) {
          const auto ranks = static_cast<size_t>(transport.size());
          const size_t bytes = count * c10::elementSize(call.dtype);
          std::vector<const char*> in;
          for (size_t r = 0; r < ranks; ++r) in.push_back(static_cast<const char*>(input) + r * bytes);
          transport.reduce_scatter(call, deadline, in, std::vector<size_t>(ranks, count), static_cast<char*>(output));
        },
        dtype_of(element_type), count * static_cast<size_t>(group->size), reduction_of(op));
  });
}

int all_to_all(void*, const neuroncore_group_t* group, const void* input, const size_t* input_bytes, void* output,
               const size_t* output_bytes, char* error, size_t error_size) {
  return answer(error, error_size, [&] {
    const auto ranks = static_cast<size_t>(group->size);
    run(
        *group, Kind::AllToAll,
        [&](Transport& transport, const Collective& call, Deadline deadline) {
          std::vector<SendBytes> to;
          std::vector<ReceiveBytes> from;
          const char* source = static_cast<const char*>(input);
          char* target = static_cast<char*>(output);
          for (size_t r = 0; r < ranks; ++r) {
            to.push_back({source, input_bytes[r]});
            from.push_back({target, output_bytes[r]});
            source += input_bytes[r];
            target += output_bytes[r];
          }
          transport.exchange(call, deadline, to, from);
        },
        c10::ScalarType::Byte, std::accumulate(input_bytes, input_bytes + ranks, size_t{0}));
  });
}

int broadcast(void*, const neuroncore_group_t* group, int32_t root, void* data, size_t bytes, char* error,
              size_t error_size) {
  return answer(error, error_size, [&] {
    run(
        *group, Kind::Broadcast,
        [&](Transport& transport, const Collective& call, Deadline deadline) {
          broadcast_bytes(transport, call, deadline, static_cast<char*>(data), bytes);
        },
        c10::ScalarType::Byte, bytes, Reduction::Sum, root);
  });
}

int barrier(void*, const neuroncore_group_t* group, char* error, size_t error_size) {
  return answer(error, error_size, [&] { run(*group, Kind::Barrier, &meet); });
}

}  // namespace

void provide_collectives_to_programs() {
  static std::once_flag once;
  std::call_once(once, [] {
    const Runtime& nrt = runtime();
    if (nrt.neuroncore_set_collectives == nullptr) return;
    neuroncore_collectives_t table{};
    table.struct_size = sizeof(table);
    table.describe_group = &describe_group;
    table.all_reduce = &all_reduce;
    table.all_gather = &all_gather;
    table.reduce_scatter = &reduce_scatter;
    table.all_to_all = &all_to_all;
    table.broadcast = &broadcast;
    table.barrier = &barrier;
    check_status(nrt.neuroncore_set_collectives(&table), "giving the core a transport for collectives");
  });
}

}  // namespace neuron::distributed
