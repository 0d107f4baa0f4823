// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <distributed/message_link.h>
#include <distributed/shared_peers.h>

namespace neuron::distributed {

// Streams through rings in shared memory, one for each ordered pair of ranks.
class RingLink final : public MessageLink {
 public:
  explicit RingLink(SharedPeers& peers) : peers_(peers), segment_(peers.segment()) {}

  Peers& peers() override { return peers_; }
  size_t write(int peer, const char* data, size_t bytes) override;
  size_t read(int peer, char* data, size_t bytes) override;
  void moved(int peer) override { segment_.control(peer).messages.ring(); }
  void await(Deadline deadline, c10::function_ref<bool()> step, c10::function_ref<std::vector<int>()> missing,
             c10::function_ref<std::string()> what) override {
    peers_.await(&RankControl::messages, deadline, step, missing, what);
  }
  bool rest(std::chrono::microseconds at_most, c10::function_ref<bool()> step) override {
    return peers_.rest(&RankControl::messages, at_most, step);
  }
  void wake() override { segment_.control(segment_.rank()).messages.ring(); }

 private:
  SharedPeers& peers_;
  SharedSegment& segment_;
};

}  // namespace neuron::distributed
