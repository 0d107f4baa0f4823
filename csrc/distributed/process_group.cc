// SPDX-License-Identifier: Apache-2.0
//
// ProcessGroupNeuron: what each collective moves.
#include <distributed/process_group.h>

#include <numeric>

#include <c10/util/Exception.h>

#include <distributed/tensor_checks.h>

namespace neuron::distributed {
namespace {

using c10d::OpType;
using Calls = std::vector<Collective>;
using Use = HostMemory::Use;

SendBytes bytes_of(const HostMemory& memory) { return {memory.data(), memory.size()}; }
ReceiveBytes room_of(const HostMemory& memory) { return {memory.data(), memory.size()}; }

// Views of equal parts of a tensor, in order.
std::vector<ReceiveBytes> parts_of(const HostMemory& memory, size_t parts) {
  return equal_parts(memory.data(), memory.size() / parts, parts);
}

// Views of parts of so many bytes each, in order.
std::vector<ReceiveBytes> cut(const HostMemory& memory, const std::vector<size_t>& bytes) {
  std::vector<ReceiveBytes> all;
  size_t start = 0;
  for (const size_t size : bytes) {
    all.push_back({memory.data() + start, size});
    start += size;
  }
  return all;
}

// The bytes of `rows` rows (of dimension 0) each; equal parts when there are none.
std::vector<size_t> split_bytes(const char* what, const at::Tensor& tensor, const std::vector<int64_t>& rows,
                                int ranks) {
  constexpr const char* kName = "all_to_all_single";
  const auto count = static_cast<size_t>(ranks);
  if (rows.empty()) {
    TORCH_CHECK_VALUE(tensor.dim() > 0 && tensor.size(0) % ranks == 0, kName, ": dimension 0 of the ", what, " ",
                      tensor.sizes(), " does not divide equally by ", ranks, " ranks; give split sizes.");
    return std::vector<size_t>(count, tensor.nbytes() / count);
  }
  TORCH_CHECK_VALUE(rows.size() == count, kName, ": expected ", ranks, " split sizes of the ", what, ", but got ",
                    rows.size(), ".");
  const int64_t total = std::accumulate(rows.begin(), rows.end(), int64_t{0});
  TORCH_CHECK_VALUE(tensor.dim() > 0 && total == tensor.size(0), kName, ": the split sizes of the ", what,
                    " add up to ", total, ", but its sizes are ", tensor.sizes(), ".");
  const size_t row = tensor.size(0) == 0 ? 0 : tensor.nbytes() / static_cast<size_t>(tensor.size(0));
  std::vector<size_t> bytes;
  for (const int64_t r : rows) {
    TORCH_CHECK_VALUE(r >= 0, kName, ": a split size is ", r, ".");
    bytes.push_back(static_cast<size_t>(r) * row);
  }
  return bytes;
}

// The tensors of a coalesced call, each input before its output. `wholes` are as large as `parts` of all ranks.
std::vector<TensorUse> paired_uses(const char* name, const std::vector<at::Tensor>& inputs,
                                   const std::vector<at::Tensor>& outputs, const std::vector<at::Tensor>& wholes,
                                   const std::vector<at::Tensor>& parts, int ranks) {
  TORCH_CHECK_VALUE(outputs.size() == inputs.size(), name, ": ", inputs.size(), " inputs, but ", outputs.size(),
                    " outputs.");
  check_tensors(name, inputs);
  check_tensors(name, outputs);
  std::vector<TensorUse> uses;
  for (size_t i = 0; i < inputs.size(); ++i) {
    check_whole(name, wholes[i], parts[i], ranks);
    uses.push_back({inputs[i], Use::Read});
    uses.push_back({outputs[i], Use::Overwrite});
  }
  return uses;
}

// The operand and the place of the result, which are one tensor unless the reduction multiplies first.
std::vector<TensorUse> reduced_uses(const c10d::ReduceOp& op, const at::Tensor& tensor) {
  const at::Tensor operand = operand_of(op, tensor);
  if (operand.is_same(tensor)) return {{tensor, Use::Update}};
  return {{operand, Use::Read}, {tensor, Use::Overwrite}};
}

int checked_root(const char* name, int64_t root, int64_t root_tensor, int ranks) {
  TORCH_CHECK_VALUE(root >= 0 && root < ranks, name, ": there is no rank ", root, " in a group of ", ranks, ".");
  TORCH_CHECK_VALUE(root_tensor == 0, name, ": there is one tensor, but the root is tensor ", root_tensor, ".");
  return static_cast<int>(root);
}

}  // namespace

ProcessGroupNeuron::WorkPointer ProcessGroupNeuron::broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) {
  constexpr const char* kName = "broadcast";
  const at::Tensor tensor = single(kName, tensors);
  check_tensor(kName, tensor, true);
  const int root = checked_root(kName, opts.rootRank, opts.rootTensor, getSize());
  Collective call = call_of(Kind::Broadcast, tensor);
  call.root = root;
  const bool is_root = root == getRank();
  return submit({OpType::BROADCAST,
                 {call},
                 {{tensor, is_root ? Use::Read : Use::Overwrite}},
                 tensors,
                 opts.timeout,
                 opts.asyncOp,
                 [](Transport& transport, Deadline deadline, const Calls& calls, std::vector<HostMemory>& memory) {
                   broadcast_bytes(transport, calls[0], deadline, memory[0].data(), memory[0].size());
                 }});
}

ProcessGroupNeuron::WorkPointer ProcessGroupNeuron::allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) {
  constexpr const char* kName = "all_reduce";
  const at::Tensor tensor = single(kName, tensors);
  check_tensor(kName, tensor, true);
  const Reduction reduction = reduction_of(kName, opts.reduceOp, tensor.scalar_type());
  Collective call = call_of(Kind::AllReduce, tensor);
  call.reduction = reduction;
  return submit({OpType::ALLREDUCE,
                 {call},
                 reduced_uses(opts.reduceOp, tensor),
                 tensors,
                 opts.timeout,
                 opts.asyncOp,
                 [](Transport& transport, Deadline deadline, const Calls& calls, std::vector<HostMemory>& memory) {
                   transport.all_reduce(calls[0], deadline, memory.front().data(), memory.back().data());
                 }});
}

ProcessGroupNeuron::WorkPointer ProcessGroupNeuron::allreduce_coalesced(Tensors& tensors,
                                                                        const c10d::AllreduceCoalescedOptions& opts) {
  constexpr const char* kName = "all_reduce_coalesced";
  check_tensors(kName, tensors, true);
  Calls calls;
  std::vector<TensorUse> uses;
  for (const at::Tensor& tensor : tensors) {
    calls.push_back(call_of(Kind::AllReduce, tensor));
    calls.back().reduction = reduction_of(kName, opts.reduceOp, tensor.scalar_type());
    for (TensorUse& use : reduced_uses(opts.reduceOp, tensor)) uses.push_back(std::move(use));
  }
  return submit({OpType::ALLREDUCE_COALESCED, calls, std::move(uses), tensors, opts.timeout, opts.asyncOp,
                 [](Transport& transport, Deadline deadline, const Calls& calls, std::vector<HostMemory>& memory) {
                   const size_t stride = calls.empty() ? 0 : memory.size() / calls.size();
                   for (size_t i = 0; i < calls.size(); ++i)
                     transport.all_reduce(calls[i], deadline, memory[i * stride].data(),
                                          memory[(i + 1) * stride - 1].data());
                 }});
}

ProcessGroupNeuron::WorkPointer ProcessGroupNeuron::reduce(Tensors& tensors, const c10d::ReduceOptions& opts) {
  constexpr const char* kName = "reduce";
  const at::Tensor tensor = single(kName, tensors);
  check_tensor(kName, tensor, true);
  const Reduction reduction = reduction_of(kName, opts.reduceOp, tensor.scalar_type());
  const int root = checked_root(kName, opts.rootRank, opts.rootTensor, getSize());
  Collective call = call_of(Kind::Reduce, tensor);
  call.reduction = reduction;
  call.root = root;
  return submit({OpType::REDUCE,
                 {call},
                 root == getRank() ? reduced_uses(opts.reduceOp, tensor)
                                   : std::vector<TensorUse>{{operand_of(opts.reduceOp, tensor), Use::Read}},
                 tensors,
                 opts.timeout,
                 opts.asyncOp,
                 [](Transport& transport, Deadline deadline, const Calls& calls, std::vector<HostMemory>& memory) {
                   const auto ranks = static_cast<size_t>(transport.size());
                   std::vector<size_t> counts(ranks, 0);
                   counts[static_cast<size_t>(calls[0].root)] = static_cast<size_t>(calls[0].elements);
                   const std::vector<const char*> in(ranks, memory.front().data());
                   transport.reduce_scatter(calls[0], deadline, in, counts, memory.back().data());
                 }});
}

ProcessGroupNeuron::WorkPointer ProcessGroupNeuron::allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                                                              const c10d::AllgatherOptions& opts) {
  constexpr const char* kName = "all_gather";
  const at::Tensor input = single(kName, inputs);
  check_tensor(kName, input);
  TORCH_CHECK_VALUE(outputs.size() == 1, kName, ": expected one list of outputs, but got ", outputs.size(), ".");
  check_one_for_each_rank(kName, outputs[0].size(), getSize());
  check_tensors(kName, outputs[0]);
  std::vector<TensorUse> uses{{input, Use::Read}};
  for (const at::Tensor& output : outputs[0]) {
    check_same_dtype(kName, input, output);
    uses.push_back({output, Use::Overwrite});
  }
  const at::Tensor& own = outputs[0][static_cast<size_t>(getRank())];
  TORCH_CHECK_VALUE(own.numel() == input.numel(), kName, ": the input has sizes ", input.sizes(),
                    ", but the output for this rank has ", own.sizes(), ".");
  const Collective call = call_of(Kind::AllGather, input);
  return submit({OpType::ALLGATHER,
                 {call},
                 std::move(uses),
                 outputs[0],
                 opts.timeout,
                 opts.asyncOp,
                 [](Transport& transport, Deadline deadline, const Calls& calls, std::vector<HostMemory>& memory) {
                   std::vector<ReceiveBytes> from;
                   for (size_t i = 1; i < memory.size(); ++i) from.push_back(room_of(memory[i]));
                   transport.exchange(calls[0], deadline, bytes_of(memory[0]), from);
                 }});
}

ProcessGroupNeuron::WorkPointer ProcessGroupNeuron::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                                    const c10d::AllgatherOptions& opts) {
  Tensors outputs{output};
  Tensors inputs{input};
  return allgather_into_tensor_coalesced(outputs, inputs, opts);
}

ProcessGroupNeuron::WorkPointer ProcessGroupNeuron::allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                                                                        const c10d::AllgatherOptions& opts) {
  // outputs[rank][tensor]
  constexpr const char* kName = "all_gather_coalesced";
  check_one_for_each_rank(kName, outputs.size(), getSize());
  check_tensors(kName, inputs);
  std::vector<TensorUse> uses;
  Tensors results;
  Calls calls;
  for (size_t i = 0; i < inputs.size(); ++i) {
    uses.push_back({inputs[i], Use::Read});
    for (const Tensors& of_rank : outputs) {
      TORCH_CHECK_VALUE(of_rank.size() == inputs.size(), kName, ": ", inputs.size(), " inputs, but ", of_rank.size(),
                        " outputs for a rank.");
      check_tensor(kName, of_rank[i]);
      check_same_dtype(kName, inputs[i], of_rank[i]);
      uses.push_back({of_rank[i], Use::Overwrite});
      results.push_back(of_rank[i]);
    }
  }
  for (const at::Tensor& input : inputs) calls.push_back(call_of(Kind::AllGather, input));
  return submit({OpType::ALLGATHER_COALESCED, calls, std::move(uses), std::move(results), opts.timeout, opts.asyncOp,
                 [](Transport& transport, Deadline deadline, const Calls& calls, std::vector<HostMemory>& memory) {
                   const size_t stride = static_cast<size_t>(transport.size()) + 1;
                   for (size_t i = 0; i < calls.size(); ++i) {
                     std::vector<ReceiveBytes> from;
                     for (size_t r = 1; r < stride; ++r) from.push_back(room_of(memory[i * stride + r]));
                     transport.exchange(calls[i], deadline, bytes_of(memory[i * stride]), from);
                   }
                 }});
}

ProcessGroupNeuron::WorkPointer ProcessGroupNeuron::allgather_into_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts) {
  constexpr const char* kName = "all_gather_into_tensor";
  std::vector<TensorUse> uses = paired_uses(kName, inputs, outputs, outputs, inputs, getSize());
  Calls calls;
  for (const at::Tensor& input : inputs) calls.push_back(call_of(Kind::AllGather, input));
  return submit({OpType::_ALLGATHER_BASE, calls, std::move(uses), outputs, opts.timeout, opts.asyncOp,
                 [](Transport& transport, Deadline deadline, const Calls& calls, std::vector<HostMemory>& memory) {
                   for (size_t i = 0; i < calls.size(); ++i) {
                     transport.exchange(calls[i], deadline, bytes_of(memory[2 * i]),
                                        parts_of(memory[2 * i + 1], static_cast<size_t>(transport.size())));
                   }
                 }});
}

ProcessGroupNeuron::WorkPointer ProcessGroupNeuron::gather(std::vector<Tensors>& outputs, Tensors& inputs,
                                                           const c10d::GatherOptions& opts) {
  constexpr const char* kName = "gather";
  const at::Tensor input = single(kName, inputs);
  check_tensor(kName, input);
  const int root = checked_root(kName, opts.rootRank, 0, getSize());
  std::vector<TensorUse> uses{{input, Use::Read}};
  Tensors results;
  if (root == getRank()) {
    TORCH_CHECK_VALUE(outputs.size() == 1, kName, ": the root needs one list of outputs, but got ", outputs.size(),
                      ".");
    check_one_for_each_rank(kName, outputs[0].size(), getSize());
    check_tensors(kName, outputs[0]);
    for (const at::Tensor& output : outputs[0]) {
      check_same_dtype(kName, input, output);
      uses.push_back({output, Use::Overwrite});
    }
    results = outputs[0];
  } else {
    TORCH_CHECK_VALUE(outputs.empty() || outputs[0].empty(), kName, ": only the root, rank ", root, ", takes outputs.");
  }
  Collective call = call_of(Kind::Gather, input);
  call.root = root;
  return submit({OpType::GATHER,
                 {call},
                 std::move(uses),
                 std::move(results),
                 opts.timeout,
                 opts.asyncOp,
                 [](Transport& transport, Deadline deadline, const Calls& calls, std::vector<HostMemory>& memory) {
                   std::vector<ReceiveBytes> from(static_cast<size_t>(transport.size()), {nullptr, 0, false});
                   for (size_t r = 1; r < memory.size(); ++r) from[r - 1] = room_of(memory[r]);
                   transport.exchange(calls[0], deadline, bytes_of(memory[0]), from);
                 }});
}

ProcessGroupNeuron::WorkPointer ProcessGroupNeuron::scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                                            const c10d::ScatterOptions& opts) {
  constexpr const char* kName = "scatter";
  const at::Tensor output = single(kName, outputs);
  check_tensor(kName, output);
  const int root = checked_root(kName, opts.rootRank, 0, getSize());
  std::vector<TensorUse> uses{{output, Use::Overwrite}};
  if (root == getRank()) {
    TORCH_CHECK_VALUE(inputs.size() == 1, kName, ": the root needs one list of inputs, but got ", inputs.size(), ".");
    check_one_for_each_rank(kName, inputs[0].size(), getSize());
    check_tensors(kName, inputs[0]);
    for (const at::Tensor& input : inputs[0]) {
      check_same_dtype(kName, input, output);
      uses.push_back({input, Use::Read});
    }
  } else {
    TORCH_CHECK_VALUE(inputs.empty() || inputs[0].empty(), kName, ": only the root, rank ", root, ", gives inputs.");
  }
  Collective call = call_of(Kind::Scatter, output);
  call.root = root;
  return submit({OpType::SCATTER,
                 {call},
                 std::move(uses),
                 outputs,
                 opts.timeout,
                 opts.asyncOp,
                 [](Transport& transport, Deadline deadline, const Calls& calls, std::vector<HostMemory>& memory) {
                   const auto ranks = static_cast<size_t>(transport.size());
                   std::vector<SendBytes> to(ranks);
                   for (size_t r = 1; r < memory.size(); ++r) to[r - 1] = bytes_of(memory[r]);
                   std::vector<ReceiveBytes> from(ranks);
                   from[static_cast<size_t>(calls[0].root)] = room_of(memory[0]);
                   transport.exchange(calls[0], deadline, to, from);
                 }});
}

ProcessGroupNeuron::WorkPointer ProcessGroupNeuron::reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                                                   const c10d::ReduceScatterOptions& opts) {
  constexpr const char* kName = "reduce_scatter";
  const at::Tensor output = single(kName, outputs);
  check_tensor(kName, output);
  TORCH_CHECK_VALUE(inputs.size() == 1, kName, ": expected one list of inputs, but got ", inputs.size(), ".");
  check_one_for_each_rank(kName, inputs[0].size(), getSize());
  check_tensors(kName, inputs[0]);
  const Reduction reduction = reduction_of(kName, opts.reduceOp, output.scalar_type());
  std::vector<TensorUse> uses{{output, Use::Overwrite}};
  std::vector<size_t> counts;
  int64_t total = 0;
  for (const at::Tensor& input : inputs[0]) {
    check_same_dtype(kName, input, output);
    uses.push_back({operand_of(opts.reduceOp, input), Use::Read});
    counts.push_back(static_cast<size_t>(input.numel()));
    total += input.numel();
  }
  TORCH_CHECK_VALUE(inputs[0][static_cast<size_t>(getRank())].numel() == output.numel(), kName,
                    ": the output has sizes ", output.sizes(), ", but the input for this rank has ",
                    inputs[0][static_cast<size_t>(getRank())].sizes(), ".");
  Collective call = call_of(Kind::ReduceScatter, output);
  call.reduction = reduction;
  call.elements = total;
  return submit(
      {OpType::REDUCE_SCATTER,
       {call},
       std::move(uses),
       outputs,
       opts.timeout,
       opts.asyncOp,
       [counts](Transport& transport, Deadline deadline, const Calls& calls, std::vector<HostMemory>& memory) {
         std::vector<const char*> in;
         for (size_t r = 1; r < memory.size(); ++r) in.push_back(memory[r].data());
         transport.reduce_scatter(calls[0], deadline, in, counts, memory[0].data());
       }});
}

ProcessGroupNeuron::WorkPointer ProcessGroupNeuron::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                                         const c10d::ReduceScatterOptions& opts) {
  Tensors outputs{output};
  Tensors inputs{input};
  return reduce_scatter_tensor_coalesced(outputs, inputs, opts);
}

ProcessGroupNeuron::WorkPointer ProcessGroupNeuron::reduce_scatter_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& opts) {
  constexpr const char* kName = "reduce_scatter_tensor";
  std::vector<TensorUse> uses = paired_uses(kName, inputs, outputs, inputs, outputs, getSize());
  Calls calls;
  for (size_t i = 0; i < inputs.size(); ++i) {
    calls.push_back(call_of(Kind::ReduceScatter, inputs[i]));
    calls.back().reduction = reduction_of(kName, opts.reduceOp, inputs[i].scalar_type());
    uses[2 * i].tensor = operand_of(opts.reduceOp, inputs[i]);
  }
  return submit({OpType::_REDUCE_SCATTER_BASE, calls, std::move(uses), outputs, opts.timeout, opts.asyncOp,
                 [](Transport& transport, Deadline deadline, const Calls& calls, std::vector<HostMemory>& memory) {
                   const auto ranks = static_cast<size_t>(transport.size());
                   for (size_t i = 0; i < calls.size(); ++i) {
                     const std::vector<size_t> counts(ranks, static_cast<size_t>(calls[i].elements) / ranks);
                     std::vector<const char*> in;
                     for (const ReceiveBytes& part : parts_of(memory[2 * i], ranks)) in.push_back(part.data);
                     transport.reduce_scatter(calls[i], deadline, in, counts, memory[2 * i + 1].data());
                   }
                 }});
}

ProcessGroupNeuron::WorkPointer ProcessGroupNeuron::alltoall_base(at::Tensor& output, at::Tensor& input,
                                                                  std::vector<int64_t>& output_splits,
                                                                  std::vector<int64_t>& input_splits,
                                                                  const c10d::AllToAllOptions& opts) {
  constexpr const char* kName = "all_to_all_single";
  check_tensor(kName, input);
  check_tensor(kName, output);
  check_same_dtype(kName, input, output);
  const std::vector<size_t> in_bytes = split_bytes("input", input, input_splits, getSize());
  const std::vector<size_t> out_bytes = split_bytes("output", output, output_splits, getSize());
  const Collective call = call_of(Kind::AllToAll, input);
  return submit({OpType::ALLTOALL_BASE,
                 {call},
                 {{input, Use::Read}, {output, Use::Overwrite}},
                 {output},
                 opts.timeout,
                 opts.asyncOp,
                 [in_bytes, out_bytes](Transport& transport, Deadline deadline, const Calls& calls,
                                       std::vector<HostMemory>& memory) {
                   std::vector<SendBytes> to;
                   for (const ReceiveBytes& part : cut(memory[0], in_bytes)) to.push_back({part.data, part.size});
                   transport.exchange(calls[0], deadline, to, cut(memory[1], out_bytes));
                 }});
}

ProcessGroupNeuron::WorkPointer ProcessGroupNeuron::alltoall(Tensors& outputs, Tensors& inputs,
                                                             const c10d::AllToAllOptions& opts) {
  constexpr const char* kName = "all_to_all";
  check_one_for_each_rank(kName, inputs.size(), getSize());
  check_one_for_each_rank(kName, outputs.size(), getSize());
  check_tensors(kName, inputs);
  check_tensors(kName, outputs);
  std::vector<TensorUse> uses;
  for (const at::Tensor& input : inputs) {
    check_same_dtype(kName, inputs[0], input);
    uses.push_back({input, Use::Read});
  }
  for (const at::Tensor& output : outputs) {
    check_same_dtype(kName, inputs[0], output);
    uses.push_back({output, Use::Overwrite});
  }
  const Collective call = call_of(Kind::AllToAll, inputs[0]);
  return submit({OpType::ALLTOALL,
                 {call},
                 std::move(uses),
                 outputs,
                 opts.timeout,
                 opts.asyncOp,
                 [](Transport& transport, Deadline deadline, const Calls& calls, std::vector<HostMemory>& memory) {
                   const auto ranks = static_cast<size_t>(transport.size());
                   std::vector<SendBytes> to;
                   std::vector<ReceiveBytes> from;
                   for (size_t r = 0; r < ranks; ++r) {
                     to.push_back(bytes_of(memory[r]));
                     from.push_back(room_of(memory[ranks + r]));
                   }
                   transport.exchange(calls[0], deadline, to, from);
                 }});
}

ProcessGroupNeuron::WorkPointer ProcessGroupNeuron::send(Tensors& tensors, int destination, int tag) {
  check_tensor("send", single("send", tensors), true);
  checked_root("send", destination, 0, getSize());
  return post_message(OpType::SEND, tensors, destination, tag);
}

ProcessGroupNeuron::WorkPointer ProcessGroupNeuron::recv(Tensors& tensors, int source, int tag) {
  check_tensor("recv", single("recv", tensors), true);
  checked_root("recv", source, 0, getSize());
  return post_message(OpType::RECV, tensors, source, tag);
}

ProcessGroupNeuron::WorkPointer ProcessGroupNeuron::recvAnysource(Tensors& tensors, int tag) {
  check_tensor("recv", single("recv", tensors), true);
  return post_message(OpType::RECVANYSOURCE, tensors, MessageSpec::kAnySource, tag);
}

ProcessGroupNeuron::WorkPointer ProcessGroupNeuron::barrier(const c10d::BarrierOptions& opts) {
  const Collective call = call_of(Kind::Barrier, {});
  return submit({OpType::BARRIER,
                 {call},
                 {},
                 {},
                 opts.timeout,
                 opts.asyncOp,
                 [](Transport& transport, Deadline deadline, const Calls& calls, std::vector<HostMemory>&) {
                   meet(transport, calls[0], deadline);
                 }});
}

}  // namespace neuron::distributed
