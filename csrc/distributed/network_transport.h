// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <distributed/messages.h>
#include <distributed/network_peers.h>
#include <distributed/socket_link.h>
#include <distributed/transport.h>

namespace neuron::distributed {

// Ranks of several machines: each pair is connected. The bytes of a collective follow a header that
// says which one it is, so that ranks that disagree hear of it. (Gloo's messages have none: it ends the
// process when the sizes differ, and one that waits for a rank cannot look after the others.)
class NetworkTransport final : public Transport {
 public:
  NetworkTransport(int rank, GroupName name, std::vector<Connection> connections);

  void exchange(const Collective& call, Deadline deadline, c10::ArrayRef<SendBytes> to,
                c10::ArrayRef<ReceiveBytes> from) override;
  std::shared_ptr<Message> send(MessageSpec spec) override { return messages_.send(std::move(spec)); }
  std::shared_ptr<Message> receive(MessageSpec spec) override { return messages_.receive(std::move(spec)); }
  void close() override;
  void abort(const std::string& reason) override { peers_.abort(reason); }

 private:
  NetworkPeers peers_;
  SocketLink link_;
  Messages messages_;
};

}  // namespace neuron::distributed
