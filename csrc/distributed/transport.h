// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <c10/util/ArrayRef.h>

#include <distributed/collective.h>

namespace neuron::distributed {

// Called again and again while a transport waits; raises to give up (Ctrl-C, a signal's handler).
void check_signals();

// A send or a receive in flight.
class Message {
 public:
  virtual ~Message() = default;
  virtual bool done() = 0;  // with or without an error
  // True when it is done within `patience`. Drives the transport meanwhile. Raises what failed.
  virtual bool wait(std::chrono::milliseconds patience) = 0;
  virtual int source() const = 0;
};

struct MessageSpec {
  int peer = 0;  // kAnySource: of a receive
  int tag = 0;
  c10::ScalarType dtype = c10::ScalarType::Byte;
  char* data = nullptr;
  size_t bytes = 0;
  Deadline deadline;
  std::function<void(std::exception_ptr)> on_done;  // from any thread, after done() has become true

  static constexpr int kAnySource = -1;
};

struct SendBytes {
  const char* data = nullptr;
  size_t size = 0;
};

struct ReceiveBytes {
  char* data = nullptr;
  size_t size = 0;
  bool wanted = true;  // false: whatever comes is for others
};

// How the bytes of one group move between host memories. All ranks call the same collectives in the
// same order, one thread at a time; messages are independent of them. A call that fails leaves the
// group unusable: later calls raise.
class Transport {
 public:
  Transport(int rank, int size) : rank_(rank), size_(size) {}
  virtual ~Transport() = default;

  // Every rank gives each rank some bytes (`to`: one entry for each, or a single one that all get)
  // and takes what is meant for it into `from`. Own bytes are copied too.
  virtual void exchange(const Collective& call, Deadline deadline, c10::ArrayRef<SendBytes> to,
                        c10::ArrayRef<ReceiveBytes> from) = 0;
  // Reduces call.elements elements into `out`, which may be `in`.
  virtual void all_reduce(const Collective& call, Deadline deadline, const char* in, char* out);
  // Rank r gets the reduction of counts[r] elements of everybody's in[r]. `out` may be in[rank()].
  virtual void reduce_scatter(const Collective& call, Deadline deadline, c10::ArrayRef<const char*> in,
                              c10::ArrayRef<size_t> counts, char* out);

  virtual std::shared_ptr<Message> send(MessageSpec spec) = 0;
  virtual std::shared_ptr<Message> receive(MessageSpec spec) = 0;

  // The rank leaves the group in peace; others who still need it get an error that says so.
  virtual void close() = 0;
  // Whatever waits here raises `reason`, and so do the other ranks.
  virtual void abort(const std::string& reason) = 0;

  int rank() const { return rank_; }
  int size() const { return size_; }

 private:
  int rank_;
  int size_;
};

// What a failed collective or message raises, for those who hear of it later.
std::exception_ptr backend_error(const std::string& message);

// Views of `count` parts of so many bytes each, one behind the other.
std::vector<ReceiveBytes> equal_parts(char* data, size_t part_bytes, size_t count);

// Returns when every rank has called it, as an exchange of nothing.
void meet(Transport& transport, const Collective& call, Deadline deadline);

// call.root's bytes for everybody, as an exchange.
void broadcast_bytes(Transport& transport, const Collective& call, Deadline deadline, char* data, size_t bytes);

}  // namespace neuron::distributed
