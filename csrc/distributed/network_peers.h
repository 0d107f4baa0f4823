// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <atomic>
#include <mutex>
#include <string>
#include <vector>

#include <distributed/peers.h>

namespace neuron::distributed {

// A file descriptor that this process owns.
class Socket {
 public:
  explicit Socket(int file = -1) : file_(file) {}
  ~Socket();
  Socket(Socket&& other) noexcept;
  Socket& operator=(Socket&& other) noexcept;

  int file() const { return file_; }
  // How many bytes went or came without waiting.
  size_t write(const char* data, size_t bytes);
  size_t read(char* data, size_t bytes);
  // Nothing will come from the other end any more, as a read or a write has seen.
  bool ended() const { return ended_; }
  // Nothing will be written any more.
  void finish();

 private:
  int file_;
  std::atomic<bool> ended_{false};
};

// The connections to one rank; those to oneself are closed.
struct Connection {
  Socket collectives;
  Socket messages;
  Socket control;       // says that a rank failed or left; its end says that the process is gone
  std::string process;  // "process 7 on host-2", for errors
};

// Ranks that are connected over the network.
class NetworkPeers final : public Peers {
 public:
  NetworkPeers(int rank, GroupName name, std::vector<Connection> connections);
  ~NetworkPeers() override;

  Connection& connection(int rank) { return connections_[static_cast<size_t>(rank)]; }
  // What the rank was seen to do last, for the texts of errors.
  void saw(int rank, const Collective& call);

  // Sleeps until one of the files has the event that is asked for (POLLIN, POLLOUT), a watched rank says
  // something about itself, wake() is called, or for so long.
  struct Interest {
    int file;
    short events;
  };
  void sleep(const std::vector<Interest>& interests, const std::vector<int>& watched,
             std::chrono::microseconds at_most);
  void wake();

  // Waits until `step()` is true, as Peers do; between two calls it sleeps until an event of `interests()`.
  template <typename Step, typename Missing, typename What, typename Interests>
  void await(Deadline deadline, const Step& step, const Missing& missing, const What& what,
             const Interests& interests) {
    Deadline next_look = Clock::now() + kLook;
    while (!step()) {
      sleep(interests(), missing(), nap(deadline));
      if (step()) return;
      if (Clock::now() < std::min(next_look, deadline)) continue;
      next_look = Clock::now() + kLook;
      const std::vector<int> ranks = missing();
      std::string trouble = trouble_with(ranks);
      if (trouble.empty() && Clock::now() >= deadline) trouble = absence_of(ranks);
      if (trouble.empty()) continue;
      if (step()) return;
      fail(what() + ": " + trouble);
    }
  }

 protected:
  std::string trouble_of(int rank) override;
  std::string standing_of(int rank) const override;
  void announce_failure(const std::string& reason) override;
  void announce_close() override;
  void wake_all() override { wake(); }

 private:
  // How often one that waits looks after the others while bytes move.
  static constexpr std::chrono::milliseconds kLook{5};

  enum class State : uint32_t { Open, Closed, Failed };
  // What goes over a control connection.
  struct Notice {
    State state = State::Open;
    char reason[508] = "";
  };
  void announce(const Notice& notice);

  std::vector<Connection> connections_;
  Socket awake_;  // an eventfd
  std::mutex notices_mutex_;
  std::vector<std::string> troubles_;        // by rank; guarded by notices_mutex_
  bool announced_ = false;                   // guarded by notices_mutex_
  std::vector<std::atomic<uint64_t>> seen_;  // kind in the upper byte, sequence number + 1 below; 0: nothing yet
};

}  // namespace neuron::distributed
