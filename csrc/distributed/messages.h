// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <distributed/message_link.h>
#include <distributed/transport.h>

namespace neuron::distributed {

// Messages between ranks. Sends and receives of any number of peers proceed side by side, so that two
// ranks may both send first. Whoever waits moves the bytes; a thread does it while nobody waits.
class Messages {
 public:
  explicit Messages(MessageLink& link);
  ~Messages() { close(); }

  std::shared_ptr<Message> send(MessageSpec spec);
  std::shared_ptr<Message> receive(MessageSpec spec);
  // Messages that are not done fail.
  void close();

 private:
  struct Header {
    uint64_t bytes;
    int32_t tag;
    int32_t dtype;
  };
  class Item;
  using ItemPointer = std::shared_ptr<Item>;

  // A message that came before its receive was posted, or part of one.
  struct Stash {
    Header header;
    std::vector<char> bytes;
  };

  struct Lane {
    std::deque<ItemPointer> sends;
    std::deque<ItemPointer> receives;
    // The message that is coming in: its header, how much of it is here, and where it goes. It is
    // `incoming` when the whole header is here.
    bool incoming = false;
    size_t header_arrived = 0;
    Header header{};
    size_t arrived = 0;
    ItemPointer target;  // null: `stash.back()`
    std::deque<Stash> stash;
  };

  void post(const ItemPointer& item);
  // Moves what can be moved. True when something was. The caller holds mutex_.
  bool progress();
  bool push(int peer);
  bool pull(int peer);
  bool match_stash(int peer);
  ItemPointer take_receive(int peer, const Header& header);
  void finish(const ItemPointer& item, std::exception_ptr error = nullptr);
  void fail_all(const std::exception_ptr& error);
  std::vector<int> missing_for(const Item& item) const;
  bool wait(Item& item, std::chrono::milliseconds patience);
  void work();
  // Runs callbacks of finished messages, without the mutex.
  void run_callbacks();

  Peers& peers() const { return link_.peers(); }
  std::string what(const char* call, int tag) const;

  MessageLink& link_;
  std::mutex mutex_;
  std::condition_variable wanted_;
  std::vector<Lane> lanes_;
  std::deque<ItemPointer> any_source_;
  std::vector<std::function<void()>> callbacks_;
  size_t pending_ = 0;
  int waiters_ = 0;
  bool closing_ = false;
  std::thread thread_;
};

}  // namespace neuron::distributed
