// SPDX-License-Identifier: Apache-2.0
//
// ProcessGroupNeuron: how a collective gets its turn, and how a group ends. process_group.cc says what
// each collective does.
#include <distributed/process_group.h>

#include <algorithm>
#include <utility>

#include <c10/util/Exception.h>
#include <torch/csrc/utils/pybind.h>

#include <device/current_device.h>
#include <device/launch_queue.h>
#include <nrt/gil.h>

namespace neuron::distributed {
namespace {

// How long shutdown() waits for asynchronous collectives that nobody has waited for.
constexpr std::chrono::seconds kGrace{5};

struct Registry {
  std::mutex mutex;
  // By ordinal; places of groups that are gone are free.
  std::vector<c10::weak_intrusive_ptr<ProcessGroupNeuron>> groups;
};

Registry& registry() {
  static auto* leaked = new Registry;
  return *leaked;
}

std::atomic<int64_t> g_nanoseconds{0};

// Adds the time of a scope to what collectives took.
class Stopwatch {
 public:
  ~Stopwatch() { g_nanoseconds += std::chrono::nanoseconds(Clock::now() - start_).count(); }

 private:
  Clock::time_point start_ = Clock::now();
};

std::string text_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const c10::Error& e) {
    return e.what_without_backtrace();
  } catch (const std::exception& e) {
    return e.what();
  }
}

}  // namespace

// A collective from the call until its work is complete.
struct ProcessGroupNeuron::Operation {
  std::shared_ptr<Channel> channel;
  std::vector<Collective> calls;
  std::vector<TensorUse> tensors;
  std::vector<HostMemory> memory;
  std::chrono::milliseconds timeout{0};
  Body body;
  c10::intrusive_ptr<NeuronWork> work;
};

ProcessGroupNeuron::ProcessGroupNeuron(std::shared_ptr<Transport> transport, GroupName name,
                                       std::chrono::milliseconds timeout)
    : Backend(transport->rank(), transport->size()),
      transport_(std::move(transport)),
      name_(std::move(name)),
      options_(c10::make_intrusive<Options>("neuron", timeout)),
      channel_(std::make_shared<Channel>()),
      thread_(std::make_shared<CollectiveThread>()) {
  channel_->transport = transport_;
  options_->group_name = name_.name;
  options_->global_ranks_in_group.assign(name_.global_ranks.begin(), name_.global_ranks.end());
}

c10::intrusive_ptr<ProcessGroupNeuron> ProcessGroupNeuron::create(std::shared_ptr<Transport> transport, GroupName name,
                                                                  std::chrono::milliseconds timeout) {
  auto group = c10::make_intrusive<ProcessGroupNeuron>(std::move(transport), std::move(name), timeout);
  std::lock_guard<std::mutex> lock(registry().mutex);
  auto& groups = registry().groups;
  const auto is_free = [](const auto& place) {
    const auto known = place.lock();
    return !known || known->closed_;
  };
  const auto place = std::find_if(groups.begin(), groups.end(), is_free);
  group->ordinal_ = place - groups.begin();
  if (place == groups.end()) {
    groups.emplace_back(group);
  } else {
    *place = c10::weak_intrusive_ptr<ProcessGroupNeuron>(group);
  }
  return group;
}

ProcessGroupNeuron::~ProcessGroupNeuron() { shutdown(); }

void ProcessGroupNeuron::check_open() const {
  TORCH_CHECK(!closed_, "Group '", name_.name, "' of the backend 'neuron' was destroyed; it cannot be used any more.");
}

std::chrono::milliseconds ProcessGroupNeuron::timeout_or_default(std::chrono::milliseconds timeout) const {
  return timeout == c10d::kUnsetTimeout ? options_->timeout : timeout;
}

Collective ProcessGroupNeuron::call_of(Kind kind, const at::Tensor& tensor) const {
  check_open();
  Collective call;
  call.kind = kind;
  if (tensor.defined()) {
    call.dtype = tensor.scalar_type();
    call.elements = tensor.numel();
    call.set_shape(tensor.sizes());
  }
  return call;
}

c10::Device ProcessGroupNeuron::device_of(const Submission& submission) const {
  if (!submission.tensors.empty()) return submission.tensors[0].tensor.device();
  return {kNeuron, current_device()};
}

void ProcessGroupNeuron::execute(Operation& operation) {
  std::exception_ptr error;
  try {
    std::lock_guard<std::mutex> lock(operation.channel->executing);
    const Stopwatch stopwatch;
    operation.body(*operation.channel->transport, deadline_in(operation.timeout), operation.calls, operation.memory);
    for (HostMemory& memory : operation.memory) memory.commit();
  } catch (...) {
    error = std::current_exception();
    operation.channel->transport->abort(text_of(error));
  }
  operation.memory.clear();
  operation.work->complete(error);
}

ProcessGroupNeuron::WorkPointer ProcessGroupNeuron::submit(Submission submission) {
  check_open();
  const c10::Device device = device_of(submission);
  auto operation = std::make_shared<Operation>();
  operation->channel = channel_;
  operation->calls = std::move(submission.calls);
  operation->tensors = std::move(submission.tensors);
  operation->timeout = timeout_or_default(submission.timeout);
  operation->body = std::move(submission.body);
  operation->work =
      c10::make_intrusive<NeuronWork>(transport_, submission.type, submitted_++, device, std::move(submission.results));
  const c10::intrusive_ptr<NeuronWork> work = operation->work;
  const bool async = submission.async || coalescing_;
  const auto turn = [operation, async, thread = thread_] {
    for (Collective& call : operation->calls) call.sequence = operation->channel->sequence++;
    try {
      operation->memory = host_memory_of(operation->tensors);
    } catch (...) {
      operation->channel->transport->abort(text_of(std::current_exception()));
      operation->work->complete(std::current_exception());
      return;
    }
    if (async) {
      thread->submit([operation] { execute(*operation); });
      return;
    }
    // Asynchronous ones that were called before come first.
    thread->wait_idle();
    execute(*operation);
  };
  work->set_place(LaunchQueue::of(device.index()).enqueue_task(async ? kAwaitedUs : 0, turn));
  if (coalescing_) coalesced_.push_back(work);
  return work;
}

ProcessGroupNeuron::WorkPointer ProcessGroupNeuron::post_message(c10d::OpType type, Tensors& tensors, int peer,
                                                                 int tag) {
  check_open();
  const at::Tensor tensor = tensors[0];
  auto work = c10::make_intrusive<NeuronWork>(transport_, type, 0, tensor.device(), Tensors{tensor});
  const bool is_send = type == c10d::OpType::SEND;
  auto memory = std::make_shared<std::vector<HostMemory>>();
  const auto turn = [=, timeout = options_->timeout, transport = transport_] {
    try {
      *memory = host_memory_of({{tensor, is_send ? HostMemory::Use::Read : HostMemory::Use::Overwrite}});
      MessageSpec spec;
      spec.peer = peer;
      spec.tag = tag;
      spec.dtype = tensor.scalar_type();
      spec.data = memory->front().data();
      spec.bytes = memory->front().size();
      spec.deadline = deadline_in(timeout);
      spec.on_done = [work, memory](std::exception_ptr error) {
        if (!error) memory->front().commit();
        memory->clear();
        work->complete(std::move(error));
      };
      work->set_message(is_send ? transport->send(std::move(spec)) : transport->receive(std::move(spec)));
    } catch (...) {
      work->complete(std::current_exception());
    }
  };
  work->set_place(LaunchQueue::of(tensor.device().index()).enqueue_task(kAwaitedUs, turn));
  if (coalescing_) coalesced_.push_back(work);
  return work;
}

void ProcessGroupNeuron::startCoalescing() {
  check_open();
  coalescing_ = true;
}

ProcessGroupNeuron::WorkPointer ProcessGroupNeuron::endCoalescing() {
  coalescing_ = false;
  return c10::make_intrusive<CoalescedWork>(std::exchange(coalesced_, {}));
}

void ProcessGroupNeuron::run_in_program(Collective call,
                                        const std::function<void(Transport&, const Collective&, Deadline)>& body) {
  check_open();
  call.sequence = channel_->sequence++;
  thread_->wait_idle();
  std::lock_guard<std::mutex> lock(channel_->executing);
  const Stopwatch stopwatch;
  try {
    body(*transport_, call, deadline_in(options_->timeout));
  } catch (...) {
    transport_->abort(text_of(std::current_exception()));
    throw;
  }
}

c10::intrusive_ptr<ProcessGroupNeuron> ProcessGroupNeuron::by_ordinal(int64_t ordinal) {
  std::lock_guard<std::mutex> lock(registry().mutex);
  const auto& groups = registry().groups;
  c10::intrusive_ptr<ProcessGroupNeuron> group;
  if (ordinal >= 0 && ordinal < static_cast<int64_t>(groups.size()))
    group = groups[static_cast<size_t>(ordinal)].lock();
  TORCH_CHECK(group && !group->closed_, "A program uses process group ", ordinal,
              " of this process, but there is none: it was destroyed, or never created in this process.");
  return group;
}

c10::intrusive_ptr<ProcessGroupNeuron> ProcessGroupNeuron::by_name(const std::string& name) {
  std::lock_guard<std::mutex> lock(registry().mutex);
  for (const auto& known : registry().groups) {
    auto group = known.lock();
    if (group && !group->closed_ && group->name_.name == name) return group;
  }
  TORCH_CHECK(false, "There is no process group '", name, "' of the backend 'neuron' in this process.");
}

int64_t ProcessGroupNeuron::collective_nanoseconds() { return g_nanoseconds; }

void ProcessGroupNeuron::abort() {
  const GilRelease no_gil;
  transport_->abort("the group was aborted in this process.");
}

void ProcessGroupNeuron::shutdown() {
  if (closed_.exchange(true)) return;
  const GilRelease no_gil;
  thread_->wait_idle(kGrace);
  transport_->close();
  thread_->stop();
}

void ProcessGroupNeuron::shutdown_all() {
  std::vector<c10::intrusive_ptr<ProcessGroupNeuron>> groups;
  {
    std::lock_guard<std::mutex> lock(registry().mutex);
    for (const auto& known : registry().groups) {
      if (auto group = known.lock()) groups.push_back(std::move(group));
    }
  }
  for (const auto& group : groups) group->shutdown();
}

}  // namespace neuron::distributed
