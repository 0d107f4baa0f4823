// SPDX-License-Identifier: Apache-2.0
#include <distributed/network_transport.h>

#include <poll.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include <c10/util/Exception.h>

namespace neuron::distributed {
namespace {

constexpr size_t kScratchBytes = size_t{64} << 10;

// What comes before the bytes of a rank.
struct Header {
  Collective call;
  uint64_t bytes = 0;
};

// One collective, as it goes between this rank and another one.
class Lane {
 public:
  Lane(NetworkPeers& peers, int peer, const Collective& call, SendBytes part, ReceiveBytes place)
      : peers_(peers),
        socket_(peers.connection(peer).collectives),
        peer_(peer),
        call_(call),
        outgoing_{call, part.size},
        part_(part),
        place_(place) {}

  bool step() {
    send();
    receive();
    return done();
  }
  bool done() const { return sent_all() && received_all(); }
  int peer() const { return peer_; }

  NetworkPeers::Interest interest() const {
    return {socket_.file(), static_cast<short>((sent_all() ? 0 : POLLOUT) | (received_all() ? 0 : POLLIN))};
  }

 private:
  bool sent_all() const { return sent_ == sizeof(Header) + part_.size; }
  bool received_all() const { return received_ >= sizeof(Header) && received_ == sizeof(Header) + incoming_.bytes; }

  void send() {
    if (sent_ < sizeof(Header)) {
      sent_ += socket_.write(reinterpret_cast<const char*>(&outgoing_) + sent_, sizeof(Header) - sent_);
      if (sent_ < sizeof(Header)) return;
    }
    const size_t done = sent_ - sizeof(Header);
    if (done < part_.size) sent_ += socket_.write(part_.data + done, part_.size - done);
  }

  void receive() {
    if (received_ < sizeof(Header)) {
      received_ += socket_.read(reinterpret_cast<char*>(&incoming_) + received_, sizeof(Header) - received_);
      if (received_ < sizeof(Header)) return;
      peers_.check_same(call_, peer_, incoming_.call);
      peers_.saw(peer_, incoming_.call);
      if (place_.wanted) peers_.check_size(call_, peer_, incoming_.call, incoming_.bytes, place_.size);
    }
    for (;;) {
      const size_t done = received_ - sizeof(Header);
      const size_t left = incoming_.bytes - done;
      if (left == 0) return;
      char scratch[kScratchBytes];
      const size_t got = place_.wanted ? socket_.read(place_.data + done, left)
                                       : socket_.read(scratch, std::min(left, sizeof(scratch)));
      received_ += got;
      if (got == 0) return;
    }
  }

  NetworkPeers& peers_;
  Socket& socket_;
  int peer_;
  const Collective& call_;
  Header outgoing_;
  Header incoming_{};
  SendBytes part_;
  ReceiveBytes place_;
  size_t sent_ = 0;  // of header and bytes
  size_t received_ = 0;
};

}  // namespace

NetworkTransport::NetworkTransport(int rank, GroupName name, std::vector<Connection> connections)
    : Transport(rank, static_cast<int>(connections.size())),
      peers_(rank, std::move(name), std::move(connections)),
      link_(peers_),
      messages_(link_) {}

void NetworkTransport::close() {
  messages_.close();
  peers_.close();
}

void NetworkTransport::exchange(const Collective& call, Deadline deadline, c10::ArrayRef<SendBytes> to,
                                c10::ArrayRef<ReceiveBytes> from) {
  peers_.check_usable();
  std::vector<Lane> lanes;
  // Also without bytes: so every rank waits for every other, as with shared memory.
  for (int r = 0; r < size(); ++r) {
    const auto peer = static_cast<size_t>(r);
    const SendBytes& part = to.size() == 1 ? to[0] : to[peer];
    const ReceiveBytes& place = from[peer];
    if (r == rank()) {
      if (place.wanted && place.size > 0 && place.data != part.data)
        std::memcpy(place.data, part.data, std::min(part.size, place.size));
      continue;
    }
    const bool to_root_only = call.kind == Kind::Gather && r != call.root;
    lanes.emplace_back(peers_, r, call, to_root_only ? SendBytes{} : part, place);
  }
  peers_.await(
      deadline,
      [&] {
        bool all = true;
        for (Lane& lane : lanes) all = (lane.done() || lane.step()) && all;
        return all;
      },
      [&] {
        std::vector<int> missing;
        for (const Lane& lane : lanes) {
          if (!lane.done()) missing.push_back(lane.peer());
        }
        return missing;
      },
      [&] { return c10::str(peers_.what(call), " of group '", peers_.name().name, "'"); },
      [&] {
        std::vector<NetworkPeers::Interest> interests;
        for (const Lane& lane : lanes) {
          if (!lane.done()) interests.push_back(lane.interest());
        }
        return interests;
      });
}

}  // namespace neuron::distributed
