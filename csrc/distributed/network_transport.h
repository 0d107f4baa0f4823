// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <mutex>
#include <string>
#include <vector>

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <distributed/peers.h>
#include <distributed/transport.h>

namespace neuron::distributed {

// Ranks of several machines: all bytes go through messages of a Gloo group, which this transport has
// for itself.
class NetworkTransport final : public Transport {
 public:
  NetworkTransport(c10::intrusive_ptr<c10d::Backend> gloo, GroupName name);

  void exchange(const Collective& call, Deadline deadline, c10::ArrayRef<SendBytes> to,
                c10::ArrayRef<ReceiveBytes> from) override;
  std::shared_ptr<Message> send(MessageSpec spec) override;
  std::shared_ptr<Message> receive(MessageSpec spec) override;
  void close() override;
  void abort(const std::string& reason) override;

 private:
  class Item;

  void check_usable();
  std::shared_ptr<Message> start(c10::intrusive_ptr<c10d::Work> work, MessageSpec spec, std::string what);

  c10::intrusive_ptr<c10d::Backend> gloo_;
  GroupName name_;
  int next_tag_ = 0;
  std::mutex mutex_;
  std::string reason_;  // why it is not usable; empty while it is
  std::vector<std::weak_ptr<Item>> messages_;
};

}  // namespace neuron::distributed
