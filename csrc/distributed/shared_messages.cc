// SPDX-License-Identifier: Apache-2.0
#include <distributed/shared_messages.h>

#include <algorithm>
#include <cstring>

#include <c10/util/Exception.h>

namespace neuron::distributed {

class SharedMessages::Item final : public Message {
 public:
  Item(SharedMessages& owner, MessageSpec spec, bool is_send)
      : spec(std::move(spec)), is_send(is_send), source_(this->spec.peer), owner_(owner) {}

  bool done() override { return done_.load(std::memory_order_acquire); }
  bool wait(std::chrono::milliseconds patience) override { return owner_.wait(*this, patience); }
  int source() const override { return source_; }

  void finish(std::exception_ptr failure) {
    error = std::move(failure);
    done_.store(true, std::memory_order_release);
  }
  void came_from(int peer) { source_ = peer; }

  MessageSpec spec;
  const bool is_send;
  bool has_header = false;  // of a send: the header is in the ring
  size_t moved = 0;         // of a send: bytes in the ring
  std::exception_ptr error;

 private:
  int source_;
  std::atomic<bool> done_{false};
  SharedMessages& owner_;
};

namespace {

// Copies between a ring, which wraps round, and plain memory.
void into_ring(char* ring, size_t capacity, uint64_t position, const char* data, size_t bytes) {
  const size_t start = position % capacity;
  const size_t first = std::min(bytes, capacity - start);
  std::memcpy(ring + start, data, first);
  std::memcpy(ring, data + first, bytes - first);
}

void out_of_ring(const char* ring, size_t capacity, uint64_t position, char* data, size_t bytes) {
  const size_t start = position % capacity;
  const size_t first = std::min(bytes, capacity - start);
  std::memcpy(data, ring + start, first);
  std::memcpy(data + first, ring, bytes - first);
}

}  // namespace

SharedMessages::SharedMessages(std::shared_ptr<Peers> peers)
    : peers_(std::move(peers)), lanes_(static_cast<size_t>(peers_->segment().size())) {}

std::shared_ptr<Message> SharedMessages::send(MessageSpec spec) {
  auto item = std::make_shared<Item>(*this, std::move(spec), true);
  post(item);
  return item;
}

std::shared_ptr<Message> SharedMessages::receive(MessageSpec spec) {
  auto item = std::make_shared<Item>(*this, std::move(spec), false);
  post(item);
  return item;
}

void SharedMessages::post(const ItemPointer& item) {
  peers_->check_usable();
  {
    std::lock_guard<std::mutex> lock(mutex_);
    ++pending_;
    if (item->is_send) {
      lanes_[static_cast<size_t>(item->spec.peer)].sends.push_back(item);
    } else if (item->spec.peer == MessageSpec::kAnySource) {
      any_source_.push_back(item);
      for (int r = 0; r < peers_->segment().size(); ++r) match_stash(r);
    } else {
      lanes_[static_cast<size_t>(item->spec.peer)].receives.push_back(item);
      match_stash(item->spec.peer);
    }
    progress();
    if (!item->done()) {
      if (!thread_.joinable()) thread_ = std::thread([this] { work(); });
      wanted_.notify_one();
    }
  }
  run_callbacks();
}

bool SharedMessages::progress() {
  bool moved = false;
  for (int peer = 0; peer < peers_->segment().size(); ++peer) {
    moved = push(peer) || moved;
    moved = pull(peer) || moved;
  }
  return moved;
}

bool SharedMessages::push(int peer) {
  SharedSegment& segment = peers_->segment();
  Lane& lane = lanes_[static_cast<size_t>(peer)];
  MessageRing& ring = segment.ring(segment.rank(), peer);
  char* data = segment.ring_data(segment.rank(), peer);
  const size_t capacity = segment.ring_bytes();
  bool moved = false;
  while (!lane.sends.empty()) {
    const ItemPointer item = lane.sends.front();
    uint64_t written = ring.written.load(std::memory_order_relaxed);
    size_t room = capacity - static_cast<size_t>(written - ring.read.load(std::memory_order_acquire));
    if (!item->has_header) {
      if (room < sizeof(Header)) break;
      const Header header{item->spec.bytes, item->spec.tag, static_cast<int32_t>(item->spec.dtype)};
      into_ring(data, capacity, written, reinterpret_cast<const char*>(&header), sizeof(header));
      written += sizeof(header);
      room -= sizeof(header);
      item->has_header = true;
      moved = true;
    }
    const size_t bytes = std::min(room, item->spec.bytes - item->moved);
    into_ring(data, capacity, written, item->spec.data + item->moved, bytes);
    item->moved += bytes;
    ring.written.store(written + bytes, std::memory_order_release);
    moved = moved || bytes > 0;
    if (item->moved < item->spec.bytes) break;
    lane.sends.pop_front();
    finish(item);
  }
  if (moved) segment.control(peer).messages.ring();
  return moved;
}

SharedMessages::ItemPointer SharedMessages::take_receive(int peer, const Header& header) {
  for (auto* queue : {&lanes_[static_cast<size_t>(peer)].receives, &any_source_}) {
    const auto found =
        std::find_if(queue->begin(), queue->end(), [&](const ItemPointer& i) { return i->spec.tag == header.tag; });
    if (found == queue->end()) continue;
    const ItemPointer item = *found;
    queue->erase(found);
    item->came_from(peer);
    const bool fits = header.bytes == item->spec.bytes && header.dtype == static_cast<int32_t>(item->spec.dtype);
    if (!fits) {
      const auto sent = static_cast<c10::ScalarType>(header.dtype);
      finish(item, backend_error(c10::str(peers_->name().of(peers_->segment().rank()), " in recv (tag ", header.tag,
                                          ") of group '", peers_->name().name, "': ", peers_->name().of(peer), " sent ",
                                          header.bytes, " bytes of ", sent, ", but ", item->spec.bytes, " bytes of ",
                                          item->spec.dtype,
                                          " are expected. Both tensors must have the same size and dtype.")));
      return nullptr;
    }
    return item;
  }
  return nullptr;
}

// Gives messages that came early to receives that are there now.
bool SharedMessages::match_stash(int peer) {
  Lane& lane = lanes_[static_cast<size_t>(peer)];
  bool matched = false;
  for (auto stashed = lane.stash.begin(); stashed != lane.stash.end();) {
    const bool is_last = std::next(stashed) == lane.stash.end();
    const ItemPointer item = take_receive(peer, stashed->header);
    if (item == nullptr) {
      ++stashed;
      continue;
    }
    matched = true;
    const bool still_coming = is_last && lane.incoming && lane.target == nullptr;
    const size_t here = still_coming ? lane.arrived : stashed->bytes.size();
    std::memcpy(item->spec.data, stashed->bytes.data(), here);
    stashed = lane.stash.erase(stashed);
    if (still_coming) {
      lane.target = item;
    } else {
      finish(item);
    }
  }
  return matched;
}

bool SharedMessages::pull(int peer) {
  SharedSegment& segment = peers_->segment();
  Lane& lane = lanes_[static_cast<size_t>(peer)];
  MessageRing& ring = segment.ring(peer, segment.rank());
  const char* data = segment.ring_data(peer, segment.rank());
  const size_t capacity = segment.ring_bytes();
  bool moved = false;
  for (;;) {
    uint64_t read = ring.read.load(std::memory_order_relaxed);
    size_t here = static_cast<size_t>(ring.written.load(std::memory_order_acquire) - read);
    if (!lane.incoming) {
      // Without a receive from this rank the sender may wait.
      if (here < sizeof(Header) || (lane.receives.empty() && any_source_.empty())) break;
      out_of_ring(data, capacity, read, reinterpret_cast<char*>(&lane.header), sizeof(Header));
      read += sizeof(Header);
      here -= sizeof(Header);
      lane.incoming = true;
      lane.arrived = 0;
      lane.target = take_receive(peer, lane.header);
      if (lane.target == nullptr) lane.stash.push_back({lane.header, std::vector<char>(lane.header.bytes)});
      moved = true;
    }
    char* place = lane.target != nullptr ? lane.target->spec.data : lane.stash.back().bytes.data();
    const size_t bytes = std::min<size_t>(here, lane.header.bytes - lane.arrived);
    out_of_ring(data, capacity, read, place + lane.arrived, bytes);
    lane.arrived += bytes;
    ring.read.store(read + bytes, std::memory_order_release);
    moved = moved || bytes > 0;
    if (lane.arrived < lane.header.bytes) break;
    lane.incoming = false;
    if (lane.target != nullptr) finish(std::exchange(lane.target, nullptr));
  }
  if (moved) segment.control(peer).messages.ring();
  return moved;
}

void SharedMessages::finish(const ItemPointer& item, std::exception_ptr error) {
  --pending_;
  if (item->spec.on_done) {
    callbacks_.push_back([call = std::move(item->spec.on_done), error] { call(error); });
  }
  item->finish(std::move(error));
}

void SharedMessages::run_callbacks() {
  std::vector<std::function<void()>> callbacks;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    callbacks.swap(callbacks_);
  }
  for (const auto& callback : callbacks) callback();
}

void SharedMessages::fail_all(const std::exception_ptr& error) {
  for (Lane& lane : lanes_) {
    for (auto* queue : {&lane.sends, &lane.receives}) {
      for (const ItemPointer& item : *queue) finish(item, error);
      queue->clear();
    }
    if (lane.target != nullptr) finish(std::exchange(lane.target, nullptr), error);
  }
  for (const ItemPointer& item : any_source_) finish(item, error);
  any_source_.clear();
}

std::vector<int> SharedMessages::missing_for(const Item& item) const {
  if (item.source() != MessageSpec::kAnySource) return {item.source()};
  std::vector<int> ranks;
  for (int r = 0; r < static_cast<int>(lanes_.size()); ++r) {
    if (r != peers_->segment().rank()) ranks.push_back(r);
  }
  return ranks;
}

bool SharedMessages::wait(Item& item, std::chrono::milliseconds patience) {
  const Deadline until = Clock::now() + patience;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    ++waiters_;
  }
  const auto leave = [&] {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      --waiters_;
      if (pending_ > 0) wanted_.notify_one();
    }
    run_callbacks();
  };
  bool in_time = true;
  try {
    const auto step = [&] {
      if (item.done()) return true;
      if (std::unique_lock<std::mutex> lock(mutex_, std::try_to_lock); lock.owns_lock()) progress();
      in_time = item.done() || Clock::now() < until;
      return item.done() || !in_time;
    };
    peers_->await(
        &RankControl::messages, item.spec.deadline, step, [&] { return missing_for(item); },
        [&] {
          return c10::str(peers_->name().of(peers_->segment().rank()), " in ", item.is_send ? "send" : "recv", " (tag ",
                          item.spec.tag, ") of group '", peers_->name().name, "'");
        });
  } catch (const c10::Error&) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (!item.done()) fail_all(std::current_exception());
    }
  } catch (...) {
    leave();
    throw;
  }
  leave();
  if (!item.done()) return false;
  if (item.error) std::rethrow_exception(item.error);
  return true;
}

void SharedMessages::work() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (!closing_) {
    wanted_.wait(lock, [&] { return closing_ || (pending_ > 0 && waiters_ == 0); });
    if (closing_) return;
    Bell& bell = peers_->segment().control(peers_->segment().rank()).messages;
    const uint32_t ticket = bell.rings.load();
    bell.sleepers.fetch_add(1);
    std::atomic_thread_fence(std::memory_order_seq_cst);
    const bool moved = progress();
    const bool called = !callbacks_.empty();
    lock.unlock();
    run_callbacks();
    if (!moved && !called) bell.sleep(ticket, std::chrono::milliseconds(50));
    bell.sleepers.fetch_sub(1);
    // Nobody waits, so nobody else would notice that a peer is gone.
    std::string trouble;
    if (!moved) {
      lock.lock();
      std::vector<std::pair<std::vector<int>, Deadline>> watched;
      for (const Lane& lane : lanes_) {
        for (const auto* queue : {&lane.sends, &lane.receives}) {
          for (const ItemPointer& item : *queue) watched.emplace_back(missing_for(*item), item->spec.deadline);
        }
      }
      lock.unlock();
      for (const auto& [ranks, deadline] : watched) {
        trouble = peers_->trouble_with(ranks);
        if (trouble.empty() && Clock::now() >= deadline) trouble = peers_->absence_of(ranks);
        if (!trouble.empty()) break;
      }
    }
    lock.lock();
    if (!trouble.empty() && !progress()) {
      peers_->abort(trouble);
      fail_all(backend_error(c10::str(peers_->name().of(peers_->segment().rank()), " in send or recv of group '",
                                      peers_->name().name, "': ", trouble)));
      lock.unlock();
      run_callbacks();
      lock.lock();
    }
  }
}

void SharedMessages::close() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (closing_) return;
    closing_ = true;
    wanted_.notify_all();
    fail_all(backend_error(c10::str("group '", peers_->name().name, "' was destroyed while messages were in flight.")));
  }
  peers_->segment().control(peers_->segment().rank()).messages.ring();
  if (thread_.joinable()) {
    if (thread_.get_id() == std::this_thread::get_id()) {
      thread_.detach();
    } else {
      thread_.join();
    }
  }
  run_callbacks();
}

}  // namespace neuron::distributed
