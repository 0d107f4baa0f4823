// SPDX-License-Identifier: Apache-2.0
#include <distributed/network_peers.h>

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include <c10/util/Exception.h>

namespace neuron::distributed {
namespace {

constexpr uint64_t kKindShift = 56;

bool would_block() { return errno == EAGAIN || errno == EWOULDBLOCK; }

}  // namespace

Socket::~Socket() {
  if (file_ >= 0) ::close(file_);
}

Socket::Socket(Socket&& other) noexcept : file_(std::exchange(other.file_, -1)), ended_(other.ended_.load()) {}

size_t Socket::write(const char* data, size_t bytes) {
  size_t done = 0;
  while (done < bytes) {
    const ssize_t sent = ::send(file_, data + done, bytes - done, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && !would_block()) ended_ = true;
    if (sent <= 0) break;
    done += static_cast<size_t>(sent);
  }
  // One that only writes hears here that the other end has left.
  char next = 0;
  if (done < bytes && ::recv(file_, &next, 1, MSG_PEEK | MSG_DONTWAIT) == 0) ended_ = true;
  return done;
}

size_t Socket::read(char* data, size_t bytes) {
  size_t done = 0;
  while (done < bytes) {
    const ssize_t got = ::recv(file_, data + done, bytes - done, MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) continue;
    if (got == 0 || (got < 0 && !would_block())) ended_ = true;
    if (got <= 0) break;
    done += static_cast<size_t>(got);
  }
  return done;
}

void Socket::finish() {
  if (file_ >= 0) ::shutdown(file_, SHUT_WR);  // fails for one that is broken already
}

NetworkPeers::NetworkPeers(int rank, GroupName name, std::vector<Connection> connections)
    : Peers(rank, static_cast<int>(connections.size()), std::move(name)),
      connections_(std::move(connections)),
      awake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      troubles_(connections_.size()),
      seen_(connections_.size()) {
  TORCH_CHECK(awake_.file() >= 0, "eventfd: ", std::strerror(errno));
}

NetworkPeers::~NetworkPeers() {
  // A connection that is closed before all was read from it may lose what was written last.
  Notice notice;
  for (Connection& connection : connections_) {
    if (connection.control.file() >= 0) connection.control.read(reinterpret_cast<char*>(&notice), sizeof(notice));
  }
}

void NetworkPeers::saw(int rank, const Collective& call) {
  seen_[static_cast<size_t>(rank)] = (static_cast<uint64_t>(call.kind) << kKindShift) | (call.sequence + 1);
}

void NetworkPeers::sleep(const std::vector<Interest>& interests, const std::vector<int>& watched,
                         std::chrono::microseconds at_most) {
  std::vector<pollfd> files{{awake_.file(), POLLIN, 0}};
  for (const Interest& interest : interests) files.push_back({interest.file, interest.events, 0});
  for (const int r : watched) {
    if (r != rank()) files.push_back({connection(r).control.file(), POLLIN, 0});
  }
  const timespec patience{at_most.count() / 1000000, at_most.count() % 1000000 * 1000};
  if (ppoll(files.data(), files.size(), &patience, nullptr) <= 0 || files[0].revents == 0) return;
  uint64_t rings = 0;
  // Another thread that slept here may have taken it.
  if (::read(awake_.file(), &rings, sizeof(rings)) < 0) TORCH_INTERNAL_ASSERT(errno == EAGAIN, std::strerror(errno));
}

void NetworkPeers::wake() {
  const uint64_t one = 1;
  if (::write(awake_.file(), &one, sizeof(one)) < 0) TORCH_INTERNAL_ASSERT(errno == EAGAIN, std::strerror(errno));
}

std::string NetworkPeers::trouble_of(int rank) {
  std::lock_guard<std::mutex> lock(notices_mutex_);
  std::string& trouble = troubles_[static_cast<size_t>(rank)];
  if (!trouble.empty() || rank == this->rank()) return trouble;
  Connection& their = connection(rank);
  Notice notice;
  const ssize_t got = ::recv(their.control.file(), &notice, sizeof(notice), MSG_PEEK | MSG_DONTWAIT);
  if (got < 0 && (would_block() || errno == EINTR)) return "";
  const std::string who = name().of(rank);
  if (got > 0) {
    if (got < static_cast<ssize_t>(sizeof(notice))) return "";  // the rest is on its way
    if (notice.state == State::Failed) return trouble = c10::str(who, " failed: ", std::string(notice.reason));
    // What it sent before it left counts.
    if (!their.collectives.ended() && !their.messages.ended()) return "";
    return trouble = who + " has left: it destroyed the group.";
  }
  if (got == 0 && !their.collectives.ended() && !their.messages.ended()) return "";
  return trouble = c10::str(who, " (", their.process, ") died, or its machine cannot be reached any more: ",
                            got == 0 ? "the connection was closed" : std::strerror(errno), ".");
}

std::string NetworkPeers::standing_of(int rank) const {
  const uint64_t seen = seen_[static_cast<size_t>(rank)];
  if (seen == 0) return ", which has not called any collective of the group";
  const uint64_t sequence = (seen & ((uint64_t{1} << kKindShift) - 1)) - 1;
  return c10::str(", whose last collective of the group was ", name_of(static_cast<Kind>(seen >> kKindShift)), " #",
                  sequence);
}

void NetworkPeers::announce(const Notice& notice) {
  std::lock_guard<std::mutex> lock(notices_mutex_);
  if (std::exchange(announced_, true)) return;
  for (int r = 0; r < size(); ++r) {
    // Whoever cannot be told is gone.
    if (r != rank()) connection(r).control.write(reinterpret_cast<const char*>(&notice), sizeof(notice));
  }
}

void NetworkPeers::announce_failure(const std::string& reason) {
  Notice notice;
  notice.state = State::Failed;
  std::strncpy(notice.reason, reason.c_str(), sizeof(notice.reason) - 1);
  announce(notice);
}

void NetworkPeers::announce_close() {
  Notice notice;
  notice.state = State::Closed;
  announce(notice);
  for (Connection& connection : connections_) {
    connection.collectives.finish();
    connection.messages.finish();
  }
}

}  // namespace neuron::distributed
