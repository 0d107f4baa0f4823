// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <string>
#include <vector>

#include <c10/util/FunctionRef.h>

#include <distributed/peers.h>

namespace neuron::distributed {

// How the bytes of messages get from rank to rank: a stream for each ordered pair. One thread at a
// time makes a pass over the streams; several may wait.
class MessageLink {
 public:
  virtual ~MessageLink() = default;
  virtual Peers& peers() = 0;

  // Before a pass.
  virtual void begin_pass() {}
  // How many of the bytes went, or came, without waiting.
  virtual size_t write(int peer, const char* data, size_t bytes) = 0;
  virtual size_t read(int peer, char* data, size_t bytes) = 0;
  // After a pass in which bytes to or from the peer moved.
  virtual void moved(int /*peer*/) {}

  // Makes passes with `step()` until it is true, and sleeps in between. Raises as Peers do when one of the
  // ranks that `missing()` lists is in trouble, and at the deadline; `what()` begins the text.
  virtual void await(Deadline deadline, c10::function_ref<bool()> step, c10::function_ref<std::vector<int>()> missing,
                     c10::function_ref<std::string()> what) = 0;
  // One pass; unless it is true, sleeps until another one may move something, or for so long.
  virtual bool rest(std::chrono::microseconds at_most, c10::function_ref<bool()> step) = 0;
  // Another thread has something to move that those who sleep do not know of.
  virtual void look_up() {}
  // Ends the sleep of this rank's threads.
  virtual void wake() = 0;
};

}  // namespace neuron::distributed
