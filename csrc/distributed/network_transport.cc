// SPDX-License-Identifier: Apache-2.0
#include <distributed/network_transport.h>

#include <algorithm>
#include <cstring>
#include <future>
#include <utility>
#include <vector>

#include <ATen/ops/from_blob.h>
#include <c10/util/Exception.h>

namespace neuron::distributed {
namespace {

// Tags of messages that users send stay below; collectives count above.
constexpr int kFirstCollectiveTag = 1 << 30;
constexpr int kCollectiveTags = 1 << 20;

std::vector<at::Tensor> view(char* data, size_t bytes) {
  return {at::from_blob(data, {static_cast<int64_t>(bytes)}, at::TensorOptions(at::kByte))};
}

std::chrono::milliseconds left_until(Deadline deadline) {
  return std::max(std::chrono::milliseconds(1),
                  std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()));
}

// The first line of what Gloo says: the rest is a C++ stack.
std::string first_line(const char* text) {
  const std::string all = text;
  return all.substr(0, all.find('\n'));
}

}  // namespace

// Gloo's works are done when somebody waits for them, so each has a thread that does.
class NetworkTransport::Item final : public Message {
 public:
  Item(c10::intrusive_ptr<c10d::Work> work, MessageSpec spec, std::string what)
      : work_(std::move(work)), spec_(std::move(spec)), what_(std::move(what)) {
    done_ = std::async(std::launch::async, [this] { finish(); });
  }

  bool done() override { return done_.wait_for(std::chrono::seconds(0)) == std::future_status::ready; }

  bool wait(std::chrono::milliseconds patience) override {
    if (done_.wait_for(patience) != std::future_status::ready) return false;
    if (!error_.empty()) C10_THROW_ERROR(DistBackendError, error_);
    return true;
  }

  int source() const override { return spec_.peer == MessageSpec::kAnySource ? work_->sourceRank() : spec_.peer; }
  void abort() { work_->abort(); }

 private:
  void finish() {
    std::exception_ptr failure;
    try {
      if (!work_->wait(left_until(spec_.deadline))) error_ = what_ + ": it was aborted";
    } catch (const std::exception& gloo) {
      error_ = what_ + ": " + first_line(gloo.what());
    }
    if (!error_.empty()) failure = backend_error(error_);
    if (spec_.on_done) spec_.on_done(failure);
  }

  c10::intrusive_ptr<c10d::Work> work_;
  MessageSpec spec_;
  std::string what_;
  std::string error_;
  std::future<void> done_;  // last: its destructor waits for the thread
};

NetworkTransport::NetworkTransport(c10::intrusive_ptr<c10d::Backend> gloo, GroupName name)
    : Transport(gloo->getRank(), gloo->getSize()), gloo_(std::move(gloo)), name_(std::move(name)) {}

void NetworkTransport::check_usable() {
  std::lock_guard<std::mutex> lock(mutex_);
  TORCH_CHECK_WITH(DistBackendError, reason_.empty(), name_.of(rank()), ": group '", name_.name,
                   "' cannot be used any more: ", reason_);
}

void NetworkTransport::exchange(const Collective& call, Deadline deadline, c10::ArrayRef<SendBytes> to,
                                c10::ArrayRef<ReceiveBytes> from) {
  check_usable();
  const int tag = kFirstCollectiveTag + next_tag_++ % kCollectiveTags;
  const auto me = static_cast<size_t>(rank());
  struct Pending {
    c10::intrusive_ptr<c10d::Work> work;
    int peer;
  };
  std::vector<Pending> pending;
  // Also without bytes: so every rank waits for every other, as with shared memory.
  char nothing = 0;
  std::vector<char> unwanted(from.size());
  for (size_t r = 0; r < from.size(); ++r) {
    if (r == me) continue;
    auto tensor = from[r].wanted && from[r].size > 0 ? view(from[r].data, from[r].size) : view(&unwanted[r], 1);
    pending.push_back({gloo_->recv(tensor, static_cast<int>(r), tag), static_cast<int>(r)});
  }
  for (size_t r = 0; r < from.size(); ++r) {
    const SendBytes& part = to.size() == 1 ? to[0] : to[r];
    if (r == me) {
      if (from[r].wanted && from[r].size > 0 && from[r].data != part.data)
        std::memcpy(from[r].data, part.data, std::min(part.size, from[r].size));
      continue;
    }
    const bool to_root_only = call.kind == Kind::Gather && static_cast<int>(r) != call.root;
    auto tensor = part.size > 0 && !to_root_only ? view(const_cast<char*>(part.data), part.size) : view(&nothing, 1);
    pending.push_back({gloo_->send(tensor, static_cast<int>(r), tag), static_cast<int>(r)});
  }
  std::string failure;
  for (const Pending& p : pending) {
    try {
      if (failure.empty()) {
        p.work->wait(left_until(deadline));
      } else {
        p.work->abort();
      }
    } catch (const std::exception& error) {
      failure = c10::str(name_.of(rank()), " in ", describe(call), " of group '", name_.name, "', waiting for ",
                         name_.of(p.peer), ": ", first_line(error.what()));
    }
  }
  if (failure.empty()) return;
  abort(failure);
  C10_THROW_ERROR(DistBackendError, failure);
}

std::shared_ptr<Message> NetworkTransport::start(c10::intrusive_ptr<c10d::Work> work, MessageSpec spec,
                                                 std::string what) {
  auto item = std::make_shared<Item>(std::move(work), std::move(spec), std::move(what));
  std::lock_guard<std::mutex> lock(mutex_);
  std::erase_if(messages_, [](const auto& message) { return message.expired(); });
  messages_.push_back(item);
  return item;
}

std::shared_ptr<Message> NetworkTransport::send(MessageSpec spec) {
  check_usable();
  auto tensor = view(spec.data, spec.bytes);
  auto work = gloo_->send(tensor, spec.peer, spec.tag);
  std::string what = c10::str(name_.of(rank()), " in send to ", name_.of(spec.peer), " of group '", name_.name, "'");
  return start(std::move(work), std::move(spec), std::move(what));
}

std::shared_ptr<Message> NetworkTransport::receive(MessageSpec spec) {
  check_usable();
  auto tensor = view(spec.data, spec.bytes);
  const bool any = spec.peer == MessageSpec::kAnySource;
  auto work = any ? gloo_->recvAnysource(tensor, spec.tag) : gloo_->recv(tensor, spec.peer, spec.tag);
  std::string what = c10::str(name_.of(rank()), " in recv from ", any ? "any rank" : name_.of(spec.peer), " of group '",
                              name_.name, "'");
  return start(std::move(work), std::move(spec), std::move(what));
}

void NetworkTransport::close() { abort("it was destroyed (destroy_process_group) in this process."); }

void NetworkTransport::abort(const std::string& reason) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!reason_.empty()) return;
  reason_ = reason;
  for (const auto& message : messages_) {
    if (const auto item = message.lock()) item->abort();
  }
}

}  // namespace neuron::distributed
