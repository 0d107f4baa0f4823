// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <vector>

#include <distributed/messages.h>
#include <distributed/ring_link.h>
#include <distributed/shared_peers.h>
#include <distributed/transport.h>

namespace neuron::distributed {

// Ranks of one machine. A collective is a sequence of rounds: each rank puts up to 512 KiB into a
// slot of its own and takes what it wants from the slots of the others.
class SharedTransport final : public Transport {
 public:
  SharedTransport(std::shared_ptr<SharedSegment> segment, GroupName name);

  void exchange(const Collective& call, Deadline deadline, c10::ArrayRef<SendBytes> to,
                c10::ArrayRef<ReceiveBytes> from) override;
  void all_reduce(const Collective& call, Deadline deadline, const char* in, char* out) override;
  void reduce_scatter(const Collective& call, Deadline deadline, c10::ArrayRef<const char*> in,
                      c10::ArrayRef<size_t> counts, char* out) override;

  std::shared_ptr<Message> send(MessageSpec spec) override { return messages_.send(std::move(spec)); }
  std::shared_ptr<Message> receive(MessageSpec spec) override { return messages_.receive(std::move(spec)); }
  void close() override;
  void abort(const std::string& reason) override { peers_.abort(reason); }

 private:
  class Exchange;
  class Rounds;

  SharedPeers peers_;
  RingLink link_;
  Messages messages_;
};

}  // namespace neuron::distributed
