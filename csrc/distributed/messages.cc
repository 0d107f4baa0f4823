// SPDX-License-Identifier: Apache-2.0
#include <distributed/messages.h>

#include <algorithm>
#include <cstring>

#include <c10/util/Exception.h>

namespace neuron::distributed {

class Messages::Item final : public Message {
 public:
  Item(Messages& owner, MessageSpec spec, bool is_send)
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
  size_t header_moved = 0;  // of a send: bytes of the header that are on their way
  size_t moved = 0;         // of a send: bytes of the message that are
  std::exception_ptr error;

 private:
  int source_;
  std::atomic<bool> done_{false};
  Messages& owner_;
};

Messages::Messages(MessageLink& link) : link_(link), lanes_(static_cast<size_t>(link.peers().size())) {}

std::string Messages::what(const char* call, int tag) const {
  return c10::str(peers().name().of(peers().rank()), " in ", call, " (tag ", tag, ") of group '", peers().name().name,
                  "'");
}

std::shared_ptr<Message> Messages::send(MessageSpec spec) {
  auto item = std::make_shared<Item>(*this, std::move(spec), true);
  post(item);
  return item;
}

std::shared_ptr<Message> Messages::receive(MessageSpec spec) {
  auto item = std::make_shared<Item>(*this, std::move(spec), false);
  post(item);
  return item;
}

void Messages::post(const ItemPointer& item) {
  peers().check_usable();
  {
    std::lock_guard<std::mutex> lock(mutex_);
    ++pending_;
    if (item->is_send) {
      lanes_[static_cast<size_t>(item->spec.peer)].sends.push_back(item);
    } else if (item->spec.peer == MessageSpec::kAnySource) {
      any_source_.push_back(item);
      for (int r = 0; r < peers().size(); ++r) match_stash(r);
    } else {
      lanes_[static_cast<size_t>(item->spec.peer)].receives.push_back(item);
      match_stash(item->spec.peer);
    }
    progress();
    if (!item->done()) {
      if (!thread_.joinable()) thread_ = std::thread([this] { work(); });
      wanted_.notify_one();
      link_.look_up();
    }
  }
  run_callbacks();
}

bool Messages::progress() {
  bool moved = false;
  link_.begin_pass();
  for (int peer = 0; peer < peers().size(); ++peer) {
    const bool pushed = push(peer);
    const bool pulled = pull(peer);
    if (pushed || pulled) link_.moved(peer);
    moved = moved || pushed || pulled;
  }
  return moved;
}

bool Messages::push(int peer) {
  Lane& lane = lanes_[static_cast<size_t>(peer)];
  bool moved = false;
  while (!lane.sends.empty()) {
    const ItemPointer item = lane.sends.front();
    if (item->header_moved < sizeof(Header)) {
      const Header header{item->spec.bytes, item->spec.tag, static_cast<int32_t>(item->spec.dtype)};
      const char* rest = reinterpret_cast<const char*>(&header) + item->header_moved;
      const size_t bytes = link_.write(peer, rest, sizeof(Header) - item->header_moved);
      item->header_moved += bytes;
      moved = moved || bytes > 0;
      if (item->header_moved < sizeof(Header)) break;
    }
    const size_t bytes = link_.write(peer, item->spec.data + item->moved, item->spec.bytes - item->moved);
    item->moved += bytes;
    moved = moved || bytes > 0;
    if (item->moved < item->spec.bytes) break;
    lane.sends.pop_front();
    finish(item);
  }
  return moved;
}

Messages::ItemPointer Messages::take_receive(int peer, const Header& header) {
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
      finish(item,
             backend_error(c10::str(what("recv", header.tag), ": ", peers().name().of(peer), " sent ", header.bytes,
                                    " bytes of ", sent, ", but ", item->spec.bytes, " bytes of ", item->spec.dtype,
                                    " are expected. Both tensors must have the same size and dtype.")));
      return nullptr;
    }
    return item;
  }
  return nullptr;
}

// Gives messages that came early to receives that are there now.
bool Messages::match_stash(int peer) {
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

bool Messages::pull(int peer) {
  Lane& lane = lanes_[static_cast<size_t>(peer)];
  bool moved = false;
  for (;;) {
    if (!lane.incoming) {
      // Without a receive from this rank the sender may wait.
      if (lane.header_arrived == 0 && lane.receives.empty() && any_source_.empty()) break;
      char* rest = reinterpret_cast<char*>(&lane.header) + lane.header_arrived;
      const size_t bytes = link_.read(peer, rest, sizeof(Header) - lane.header_arrived);
      lane.header_arrived += bytes;
      moved = moved || bytes > 0;
      if (lane.header_arrived < sizeof(Header)) break;
      lane.incoming = true;
      lane.header_arrived = 0;
      lane.arrived = 0;
      lane.target = take_receive(peer, lane.header);
      if (lane.target == nullptr) lane.stash.push_back({lane.header, std::vector<char>(lane.header.bytes)});
    }
    char* place = lane.target != nullptr ? lane.target->spec.data : lane.stash.back().bytes.data();
    const size_t bytes = link_.read(peer, place + lane.arrived, lane.header.bytes - lane.arrived);
    lane.arrived += bytes;
    moved = moved || bytes > 0;
    if (lane.arrived < lane.header.bytes) break;
    lane.incoming = false;
    if (lane.target != nullptr) finish(std::exchange(lane.target, nullptr));
  }
  return moved;
}

void Messages::finish(const ItemPointer& item, std::exception_ptr error) {
  --pending_;
  if (item->spec.on_done) {
    callbacks_.push_back([call = std::move(item->spec.on_done), error] { call(error); });
  }
  item->finish(std::move(error));
}

void Messages::run_callbacks() {
  std::vector<std::function<void()>> callbacks;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    callbacks.swap(callbacks_);
  }
  for (const auto& callback : callbacks) callback();
}

void Messages::fail_all(const std::exception_ptr& error) {
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

std::vector<int> Messages::missing_for(const Item& item) const {
  if (item.source() != MessageSpec::kAnySource) return {item.source()};
  std::vector<int> ranks;
  for (int r = 0; r < static_cast<int>(lanes_.size()); ++r) {
    if (r != peers().rank()) ranks.push_back(r);
  }
  return ranks;
}

bool Messages::wait(Item& item, std::chrono::milliseconds patience) {
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
    link_.await(
        item.spec.deadline, step, [&] { return missing_for(item); },
        [&] { return what(item.is_send ? "send" : "recv", item.spec.tag); });
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

void Messages::work() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (!closing_) {
    wanted_.wait(lock, [&] { return closing_ || (pending_ > 0 && waiters_ == 0); });
    if (closing_) return;
    lock.unlock();
    const bool moved = link_.rest(std::chrono::milliseconds(50), [&] {
      lock.lock();
      const bool any = progress() || !callbacks_.empty();
      lock.unlock();
      return any;
    });
    run_callbacks();
    // Nobody waits, so nobody else would notice that a peer is gone.
    std::string trouble;
    if (!moved) {
      lock.lock();
      std::vector<std::pair<std::vector<int>, Deadline>> watched;
      const auto watch = [&](const ItemPointer& item) {
        watched.emplace_back(missing_for(*item), item->spec.deadline);
      };
      for (const Lane& lane : lanes_) {
        std::for_each(lane.sends.begin(), lane.sends.end(), watch);
        std::for_each(lane.receives.begin(), lane.receives.end(), watch);
        if (lane.target != nullptr) watch(lane.target);
      }
      std::for_each(any_source_.begin(), any_source_.end(), watch);
      lock.unlock();
      for (const auto& [ranks, deadline] : watched) {
        trouble = peers().trouble_with(ranks);
        if (trouble.empty() && Clock::now() >= deadline) trouble = peers().absence_of(ranks);
        if (!trouble.empty()) break;
      }
    }
    lock.lock();
    if (!trouble.empty() && !progress()) {
      peers().abort(trouble);
      fail_all(backend_error(c10::str(peers().name().of(peers().rank()), " in send or recv of group '",
                                      peers().name().name, "': ", trouble)));
      lock.unlock();
      run_callbacks();
      lock.lock();
    }
  }
}

void Messages::close() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (closing_) return;
    closing_ = true;
    wanted_.notify_all();
    fail_all(backend_error(c10::str("group '", peers().name().name, "' was destroyed while messages were in flight.")));
  }
  link_.wake();
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
