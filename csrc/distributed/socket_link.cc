// SPDX-License-Identifier: Apache-2.0
#include <distributed/socket_link.h>

#include <poll.h>

namespace neuron::distributed {

SocketLink::SocketLink(NetworkPeers& peers) : peers_(peers), wanted_(static_cast<size_t>(peers.size())) {}

void SocketLink::begin_pass() {
  for (auto& events : wanted_) events = 0;
}

size_t SocketLink::write(int peer, const char* data, size_t bytes) {
  const size_t done = peers_.connection(peer).messages.write(data, bytes);
  if (done < bytes) wanted_[static_cast<size_t>(peer)] |= POLLOUT;
  return done;
}

size_t SocketLink::read(int peer, char* data, size_t bytes) {
  const size_t done = peers_.connection(peer).messages.read(data, bytes);
  if (done < bytes) wanted_[static_cast<size_t>(peer)] |= POLLIN;
  return done;
}

std::vector<NetworkPeers::Interest> SocketLink::interests() {
  std::vector<NetworkPeers::Interest> all;
  for (int r = 0; r < peers_.size(); ++r) {
    const short events = wanted_[static_cast<size_t>(r)];
    const Socket& messages = peers_.connection(r).messages;
    if (events != 0 && !messages.ended()) all.push_back({messages.file(), events});
  }
  return all;
}

void SocketLink::await(Deadline deadline, c10::function_ref<bool()> step, c10::function_ref<std::vector<int>()> missing,
                       c10::function_ref<std::string()> what) {
  peers_.await(deadline, step, missing, what, [this] { return interests(); });
}

bool SocketLink::rest(std::chrono::microseconds at_most, c10::function_ref<bool()> step) {
  if (step()) return true;
  peers_.sleep(interests(), {}, at_most);
  return false;
}

}  // namespace neuron::distributed
