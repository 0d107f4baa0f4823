// SPDX-License-Identifier: Apache-2.0
#include <device/allocator.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <mutex>
#include <vector>

#include <c10/util/Exception.h>
#include <c10/util/flat_hash_map.h>

#include <device/current_device.h>
#include <device/launch_queue.h>
#include <device/size_class.h>
#include <nrt/runtime.h>

namespace neuron {
namespace {

using c10::CachingAllocator::StatType;
using c10::CachingDeviceAllocator::DeviceStats;

// One piece of device memory: in the list of live blocks, or in a list of free ones of its size.
struct Block {
  nrt_tensor_t* tensor = nullptr;
  size_t bytes = 0;      // rounded
  size_t requested = 0;  // by the tensor that has it now
  const char* creator = nullptr;
  Block* previous = nullptr;
  Block* next = nullptr;
  c10::DeviceIndex device = 0;
};

using Stats = c10::CachingAllocator::StatArray;

void add(Stats& stats, StatType pool, size_t amount) {
  stats[static_cast<size_t>(StatType::AGGREGATE)].increase(amount);
  stats[static_cast<size_t>(pool)].increase(amount);
}

void subtract(Stats& stats, StatType pool, size_t amount) {
  stats[static_cast<size_t>(StatType::AGGREGATE)].decrease(amount);
  stats[static_cast<size_t>(pool)].decrease(amount);
}

StatType pool_of(size_t bytes) {
  return bytes < size_class::kSmallPoolBelow ? StatType::SMALL_POOL : StatType::LARGE_POOL;
}

// The blocks of one device.
struct Pool {
  std::mutex mutex;
  std::array<Block*, size_class::kCount> free_small{};
  ska::flat_hash_map<size_t, Block*> free_large;
  Block* live = nullptr;
  DeviceStats stats;

  Block*& free_list(size_t bytes) {
    return bytes < size_class::kRoundedBelow ? free_small[size_class::index(bytes)] : free_large[bytes];
  }

  void link(Block& block) {
    block.previous = nullptr;
    block.next = live;
    if (live != nullptr) live->previous = &block;
    live = &block;
  }

  void unlink(Block& block) {
    (block.previous != nullptr ? block.previous->next : live) = block.next;
    if (block.next != nullptr) block.next->previous = block.previous;
  }

  // Counts a block that a tensor got (`change` is add) or gave back (subtract).
  template <void (*change)(Stats&, StatType, size_t)>
  void count(const Block& block) {
    const StatType pool = pool_of(block.bytes);
    change(stats.allocation, pool, 1);
    change(stats.active, pool, 1);
    change(stats.allocated_bytes, pool, block.bytes);
    change(stats.active_bytes, pool, block.bytes);
    change(stats.requested_bytes, pool, block.requested);
  }

  void count_device_allocation(const Block& block) {
    add(stats.segment, pool_of(block.bytes), 1);
    add(stats.reserved_bytes, pool_of(block.bytes), block.bytes);
    ++stats.num_device_alloc;
  }

  void count_device_free(const Block& block) {
    subtract(stats.segment, pool_of(block.bytes), 1);
    subtract(stats.reserved_bytes, pool_of(block.bytes), block.bytes);
    ++stats.num_device_free;
  }
};

// Leaked, with its pools: tensors may be freed after the statics of this library are gone.
std::array<std::atomic<Pool*>, 128>& pools() {
  static auto* leaked = new std::array<std::atomic<Pool*>, 128>{};
  return *leaked;
}

Pool& pool_of_device(c10::DeviceIndex device) {
  std::atomic<Pool*>& slot = pools()[static_cast<size_t>(device)];
  if (Pool* pool = slot.load(std::memory_order_acquire)) return *pool;
  auto* fresh = new Pool;
  Pool* expected = nullptr;
  if (slot.compare_exchange_strong(expected, fresh)) return *fresh;
  delete fresh;
  return *expected;
}

// Gives every free block back to the core. They leave the lists first, then the queue is drained:
// so no launch that still refers to one of them can come after.
void release_free_blocks(Pool& pool, c10::DeviceIndex device) {
  std::vector<Block*> blocks;
  {
    std::lock_guard<std::mutex> lock(pool.mutex);
    const auto take = [&](Block*& head) {
      for (Block* block = head; block != nullptr; block = block->next) blocks.push_back(block);
      head = nullptr;
    };
    for (Block*& head : pool.free_small) take(head);
    for (auto& entry : pool.free_large) take(entry.second);
    pool.free_large.clear();
    for (const Block* block : blocks) pool.count_device_free(*block);
  }
  LaunchQueue::of(device).drain();
  const Runtime& nrt = runtime();
  for (Block* block : blocks) {
    nrt.tensor_free(&block->tensor);
    delete block;
  }
}

std::string mebibytes(size_t bytes) {
  char text[32];
  snprintf(text, sizeof(text), "%.2f MiB", static_cast<double>(bytes) / (1 << 20));
  return text;
}

[[noreturn]] void raise_out_of_memory(c10::DeviceIndex device, size_t bytes) {
  Pool& pool = pool_of_device(device);
  size_t allocated = 0;
  {
    std::lock_guard<std::mutex> lock(pool.mutex);
    ++pool.stats.num_ooms;
    allocated = static_cast<size_t>(pool.stats.allocated_bytes[0].current);
  }
  const auto [free, total] = device_allocator().getMemoryInfo(device);
  TORCH_CHECK_WITH(OutOfMemoryError, false, "neuron:", static_cast<int>(device),
                   " is out of memory: ", current_operator(), " asked for ", mebibytes(bytes), ", but of ",
                   mebibytes(total), " only ", mebibytes(free), " are free. Tensors hold ", mebibytes(allocated),
                   "; the largest:\n", describe_live_blocks(device, 8),
                   "Free some of them, use a smaller batch or a smaller dtype, or spread the model over more cores.");
}

Block* allocate_from_core(Pool& pool, c10::DeviceIndex device, size_t bytes, size_t requested) {
  const Runtime& nrt = runtime();
  const int core = core_of(device);
  nrt_tensor_t* tensor = nullptr;
  const auto attempt = [&] { return nrt.tensor_allocate(NRT_TENSOR_PLACEMENT_DEVICE, core, bytes, nullptr, &tensor); };
  NRT_STATUS status = attempt();
  if (status == NRT_RESOURCE) {
    release_free_blocks(pool, device);
    {
      std::lock_guard<std::mutex> lock(pool.mutex);
      ++pool.stats.num_alloc_retries;
    }
    status = attempt();
  }
  if (status == NRT_RESOURCE) raise_out_of_memory(device, requested);
  check_status(status, "allocating device memory");
  auto* block = new Block;
  block->tensor = tensor;
  block->bytes = bytes;
  block->device = device;
  return block;
}

thread_local const char* t_operator = nullptr;

}  // namespace

void set_current_operator(const char* name) { t_operator = name; }
const char* current_operator() { return t_operator != nullptr ? t_operator : "aten::empty"; }

void free_block(void* context) {
  if (context == nullptr || in_bad_fork()) return;  // the parent's memory is not this process's
  auto& block = *static_cast<Block*>(context);
  Pool& pool = pool_of_device(block.device);
  std::lock_guard<std::mutex> lock(pool.mutex);
  pool.unlink(block);
  pool.count<&subtract>(block);
  Block*& head = pool.free_list(block.bytes);
  block.next = head;
  head = &block;
}

nrt_tensor_t* block_of_foreign_storage(const void* handle) {
  for (auto& slot : pools()) {
    Pool* pool = slot.load(std::memory_order_acquire);
    if (pool == nullptr) continue;
    std::lock_guard<std::mutex> lock(pool->mutex);
    for (const Block* block = pool->live; block != nullptr; block = block->next) {
      if (block->tensor == handle) return block->tensor;
    }
  }
  TORCH_CHECK(false,
              "This tensor's memory is no block of the neuron allocator. Device memory is opaque: a view with a "
              "storage offset cannot be exchanged through DLPack or a raw pointer; clone() it first.");
}

size_t block_size(nrt_tensor_t* block) { return block == nullptr ? 0 : runtime().tensor_get_size(block); }

std::string describe_live_blocks(c10::DeviceIndex device, size_t how_many) {
  struct Row {
    size_t bytes;
    const char* creator;
  };
  std::vector<Row> rows;
  Pool& pool = pool_of_device(device);
  {
    std::lock_guard<std::mutex> lock(pool.mutex);
    for (const Block* block = pool.live; block != nullptr; block = block->next)
      rows.push_back({block->requested, block->creator});
  }
  const size_t count = std::min(how_many, rows.size());
  std::partial_sort(rows.begin(), rows.begin() + static_cast<ptrdiff_t>(count), rows.end(),
                    [](const Row& a, const Row& b) { return a.bytes > b.bytes; });
  std::string text;
  for (size_t i = 0; i < count; ++i) text += "  " + mebibytes(rows[i].bytes) + " by " + rows[i].creator + "\n";
  return text;
}

c10::DataPtr DeviceAllocator::allocate(size_t bytes) { return allocate_on(current_device(), bytes); }

c10::DataPtr DeviceAllocator::allocate_on(c10::DeviceIndex device, size_t bytes) {
  runtime();  // raises in a forked child, and without a usable core
  check_own_device(device);
  const c10::Device where(kNeuron, device);
  if (bytes == 0) return {nullptr, nullptr, &free_block, where};
  const size_t rounded = size_class::rounded(bytes);
  Pool& pool = pool_of_device(device);
  const char* creator = current_operator();
  std::unique_lock<std::mutex> lock(pool.mutex);
  Block*& head = pool.free_list(rounded);
  Block* block = head;
  if (C10_LIKELY(block != nullptr)) {
    head = block->next;
  } else {
    lock.unlock();
    block = allocate_from_core(pool, device, rounded, bytes);
    lock.lock();
    pool.count_device_allocation(*block);
  }
  block->requested = bytes;
  block->creator = creator;
  pool.link(*block);
  pool.count<&add>(*block);
  return {block->tensor, block, &free_block, where};
}

void DeviceAllocator::copy_data(void* destination, const void* source, size_t bytes) const {
  if (bytes == 0) return;
  LaunchQueue::of(current_device()).enqueue_task(1.0, [=, &nrt = runtime()] {
    check_status(
        nrt.tensor_copy(static_cast<const nrt_tensor_t*>(source), 0, static_cast<nrt_tensor_t*>(destination), 0, bytes),
        "copying device memory");
  });
}

bool DeviceAllocator::initialized() { return runtime_initialized(); }

void DeviceAllocator::emptyCache(c10::MempoolId_t) {
  if (!runtime_initialized()) return;
  for (size_t device = 0; device < pools().size(); ++device) {
    Pool* pool = pools()[device].load(std::memory_order_acquire);
    if (pool == nullptr) continue;  // never used
    release_free_blocks(*pool, static_cast<c10::DeviceIndex>(device));
  }
}

DeviceStats DeviceAllocator::getDeviceStats(c10::DeviceIndex device) {
  check_device(device);
  Pool& pool = pool_of_device(device);
  std::lock_guard<std::mutex> lock(pool.mutex);
  return pool.stats;
}

void DeviceAllocator::resetAccumulatedStats(c10::DeviceIndex device) {
  check_device(device);
  Pool& pool = pool_of_device(device);
  std::lock_guard<std::mutex> lock(pool.mutex);
  DeviceStats& stats = pool.stats;
  for (Stats* group : {&stats.allocation, &stats.segment, &stats.active, &stats.allocated_bytes, &stats.reserved_bytes,
                       &stats.active_bytes, &stats.requested_bytes}) {
    for (auto& stat : *group) stat.reset_accumulated();
  }
  stats.num_alloc_retries = 0;
  stats.num_ooms = 0;
  stats.num_device_alloc = 0;
  stats.num_device_free = 0;
}

void DeviceAllocator::resetPeakStats(c10::DeviceIndex device) {
  check_device(device);
  Pool& pool = pool_of_device(device);
  std::lock_guard<std::mutex> lock(pool.mutex);
  DeviceStats& stats = pool.stats;
  for (Stats* group : {&stats.allocation, &stats.segment, &stats.active, &stats.allocated_bytes, &stats.reserved_bytes,
                       &stats.active_bytes, &stats.requested_bytes}) {
    for (auto& stat : *group) stat.reset_peak();
  }
}

std::pair<size_t, size_t> DeviceAllocator::getMemoryInfo(c10::DeviceIndex device) {
  check_device(device);
  nrt_vnc_memory_stats_t memory{};
  size_t written = 0;
  check_status(
      runtime().get_vnc_memory_stats(static_cast<uint32_t>(core_of(device)), &memory, sizeof(memory), &written),
      "reading the memory statistics of the core");
  size_t cached = 0;
  Pool& pool = pool_of_device(device);
  {
    std::lock_guard<std::mutex> lock(pool.mutex);
    cached = static_cast<size_t>(pool.stats.reserved_bytes[0].current - pool.stats.allocated_bytes[0].current);
  }
  const size_t used = memory.bytes_used > cached ? memory.bytes_used - cached : 0;
  const size_t free = memory.bytes_limit > used ? memory.bytes_limit - used : 0;
  return {free, memory.bytes_limit};
}

DeviceAllocator& device_allocator() {
  static auto* leaked = new DeviceAllocator;
  return *leaked;
}

}  // namespace neuron
