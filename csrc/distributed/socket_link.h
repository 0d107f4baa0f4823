// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <vector>

#include <distributed/message_link.h>
#include <distributed/network_peers.h>

namespace neuron::distributed {

// Streams through connections of the network.
class SocketLink final : public MessageLink {
 public:
  explicit SocketLink(NetworkPeers& peers);

  Peers& peers() override { return peers_; }
  void begin_pass() override;
  size_t write(int peer, const char* data, size_t bytes) override;
  size_t read(int peer, char* data, size_t bytes) override;
  void await(Deadline deadline, c10::function_ref<bool()> step, c10::function_ref<std::vector<int>()> missing,
             c10::function_ref<std::string()> what) override;
  bool rest(std::chrono::microseconds at_most, c10::function_ref<bool()> step) override;
  void look_up() override { peers_.wake(); }
  void wake() override { peers_.wake(); }

 private:
  std::vector<NetworkPeers::Interest> interests();

  NetworkPeers& peers_;
  // Events of poll() that the last pass would have needed, by peer.
  std::vector<std::atomic<short>> wanted_;
};

}  // namespace neuron::distributed
