// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <distributed/host_memory.h>
#include <distributed/peers.h>
#include <distributed/transport.h>
#include <distributed/work.h>

namespace neuron::distributed {

// The backend "neuron" of torch.distributed: one group of ranks, each with a core of its own.
//
// A collective takes its turn in the launch queue of the core, behind what computes its operands.
// A synchronous one runs right there. An asynchronous one only starts there and goes on in a thread
// of its group, so that groups may be used in different orders on different ranks.
class ProcessGroupNeuron final : public c10d::Backend {
 public:
  using Tensors = std::vector<at::Tensor>;
  using WorkPointer = c10::intrusive_ptr<c10d::Work>;

  static c10::intrusive_ptr<ProcessGroupNeuron> create(std::shared_ptr<Transport> transport, GroupName name,
                                                       std::chrono::milliseconds timeout);
  // For make_intrusive; create() is what to call.
  ProcessGroupNeuron(std::shared_ptr<Transport> transport, GroupName name, std::chrono::milliseconds timeout);
  ~ProcessGroupNeuron() override;

  const std::string getBackendName() const override { return "neuron"; }
  c10::intrusive_ptr<Options> getBackendOptions() override { return options_; }
  void setTimeout(std::chrono::milliseconds timeout) override { options_->timeout = timeout; }
  uint64_t getSequenceNumberForGroup() override { return channel_->sequence; }
  void setSequenceNumberForGroup() override {}  // begins at 0 everywhere

  WorkPointer broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) override;
  WorkPointer allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) override;
  WorkPointer allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& opts) override;
  WorkPointer reduce(Tensors& tensors, const c10d::ReduceOptions& opts) override;
  WorkPointer allgather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts) override;
  WorkPointer _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& opts) override;
  WorkPointer allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                                  const c10d::AllgatherOptions& opts) override;
  WorkPointer allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                              const c10d::AllgatherOptions& opts) override;
  WorkPointer gather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::GatherOptions& opts) override;
  WorkPointer scatter(Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ScatterOptions& opts) override;
  WorkPointer reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                             const c10d::ReduceScatterOptions& opts) override;
  WorkPointer _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                   const c10d::ReduceScatterOptions& opts) override;
  WorkPointer reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                              const c10d::ReduceScatterOptions& opts) override;
  WorkPointer alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                            std::vector<int64_t>& input_splits, const c10d::AllToAllOptions& opts) override;
  WorkPointer alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& opts) override;
  WorkPointer send(Tensors& tensors, int destination, int tag) override;
  WorkPointer recv(Tensors& tensors, int source, int tag) override;
  WorkPointer recvAnysource(Tensors& tensors, int tag) override;
  WorkPointer barrier(const c10d::BarrierOptions& opts) override;

  bool supportsCoalescing() const override { return true; }
  void startCoalescing() override;
  WorkPointer endCoalescing() override;

  void abort() override;
  void shutdown() override;
  // Of all groups that are alive: the process ends.
  static void shutdown_all();

  // Runs a collective of a program, on the thread that drives the core. Raises.
  void run_in_program(Collective call, const std::function<void(Transport&, const Collective&, Deadline)>& body);

  // How long collectives have taken in this process, waiting for other ranks included.
  static int64_t collective_nanoseconds();

  const GroupName& name() const { return name_; }
  // The place of the group among those of this process, the lowest that was free: what programs call
  // it by. Ranks that create their groups in the same way, as device meshes do, have the same ones.
  int64_t ordinal() const { return ordinal_; }
  // Raises when there is none.
  static c10::intrusive_ptr<ProcessGroupNeuron> by_ordinal(int64_t ordinal);
  // The name is c10d's (ProcessGroup.group_name).
  static c10::intrusive_ptr<ProcessGroupNeuron> by_name(const std::string& name);

 private:
  // Moves the bytes: `memory` are the tensors of the submission, in the order in which they were given.
  using Body = std::function<void(Transport& transport, Deadline deadline, const std::vector<Collective>& calls,
                                  std::vector<HostMemory>& memory)>;

  struct Submission {
    c10d::OpType type = c10d::OpType::UNKNOWN;
    std::vector<Collective> calls;  // numbered when their turn comes, as those in programs are
    std::vector<TensorUse> tensors;
    Tensors results;
    std::chrono::milliseconds timeout{0};
    bool async = true;
    Body body;
  };

  struct Operation;
  // What operations need of the group; they may be done after it is gone.
  struct Channel {
    std::shared_ptr<Transport> transport;
    std::mutex executing;  // one collective at a time
    std::atomic<uint64_t> sequence{0};
  };

  Collective call_of(Kind kind, const at::Tensor& tensor) const;
  c10::Device device_of(const Submission& submission) const;
  WorkPointer submit(Submission submission);
  WorkPointer post_message(c10d::OpType type, Tensors& tensors, int peer, int tag);
  static void execute(Operation& operation);
  void check_open() const;
  std::chrono::milliseconds timeout_or_default(std::chrono::milliseconds timeout) const;

  std::shared_ptr<Transport> transport_;
  GroupName name_;
  c10::intrusive_ptr<Options> options_;
  std::atomic<uint64_t> submitted_{0};
  bool coalescing_ = false;
  std::vector<c10::intrusive_ptr<NeuronWork>> coalesced_;
  int64_t ordinal_ = -1;  // guarded by the registry's mutex
  std::shared_ptr<Channel> channel_;
  std::shared_ptr<CollectiveThread> thread_;
  std::atomic<bool> closed_{false};
};

}  // namespace neuron::distributed
