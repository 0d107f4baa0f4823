// SPDX-License-Identifier: Apache-2.0
#include "core.h"

#include <neuroncore/neuroncore.h>
#include <nrt/nrt.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>

#include "version.h"

namespace neuroncore {
namespace {

enum class State { kUninitialized, kRunning, kClosed };

// Cores outlive nrt_close, because tensors that are freed later still refer to theirs. Never destroyed.
struct Runtime {
  std::mutex mutex;
  std::atomic<State> state{State::kUninitialized};
  std::atomic<Core* const*> cores{nullptr};
  std::atomic<uint32_t> num_cores{0};
};

Runtime& TheRuntime() {
  static auto* runtime = new Runtime;
  return *runtime;
}

constexpr uint64_t kGibibyte = uint64_t{1} << 30;
constexpr uint64_t kCoreMemory = 24 * kGibibyte;  // of a trn2 logical core
constexpr uint64_t kPoolLimit = kGibibyte;

bool ParseUnsigned(const char* text, uint64_t* value) {
  if (text == nullptr || *text < '0' || *text > '9') return false;
  char* end = nullptr;
  *value = strtoull(text, &end, 10);
  return *end == '\0';
}

uint64_t UnsignedVariable(const char* name, uint64_t fallback) {
  uint64_t value;
  return ParseUnsigned(getenv(name), &value) ? value : fallback;
}

uint32_t TotalCores() {
  uint64_t otherwise = std::max<uint64_t>(8, UnsignedVariable("LOCAL_WORLD_SIZE", 0));
  return static_cast<uint32_t>(UnsignedVariable("TORCH_NEURONX_SOFTWARE_CORES", otherwise));
}

// The cores of this process: `count` from `first` on. False after Fail().
bool VisibleCores(uint32_t* first, uint32_t* count) {
  uint32_t total = TotalCores();
  *first = 0;
  *count = total;
  const char* text = getenv("NEURON_RT_VISIBLE_CORES");
  if (text != nullptr && *text != '\0') {
    uint64_t next = 0;
    bool any = false;
    for (const char* position = text;;) {
      char* end;
      if (*position < '0' || *position > '9') goto malformed;
      uint64_t low = strtoull(position, &end, 10);
      uint64_t high = low;
      if (*end == '-') {
        position = end + 1;
        if (*position < '0' || *position > '9') goto malformed;
        high = strtoull(position, &end, 10);
      }
      if (high < low || (any && low != next)) goto malformed;
      if (!any) *first = static_cast<uint32_t>(low);
      any = true;
      next = high + 1;
      if (*end == '\0') break;
      if (*end != ',') goto malformed;
      position = end + 1;
    }
    if (next > total) {
      Fail(NRT_INVALID, "NEURON_RT_VISIBLE_CORES=%s names core %llu; this machine has cores 0 to %u", text,
           static_cast<unsigned long long>(next - 1), total - 1);
      return false;
    }
    *count = static_cast<uint32_t>(next) - *first;
    return true;
  malformed:
    Fail(NRT_INVALID,
         "NEURON_RT_VISIBLE_CORES=%s: expected core numbers that are contiguous and increasing, as in "
         "\"0-3\" or \"2,3\"",
         text);
    return false;
  }
  uint64_t wanted = UnsignedVariable("NEURON_RT_NUM_CORES", 0);
  if (wanted > total) {
    Fail(NRT_INVALID, "NEURON_RT_NUM_CORES=%llu, but this machine has %u cores",
         static_cast<unsigned long long>(wanted), total);
    return false;
  }
  if (wanted != 0) *count = static_cast<uint32_t>(wanted);
  return true;
}

uint64_t CoreCapacity() {
  uint64_t host = static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  return UnsignedVariable("NEURONCORE_MEMORY_BYTES", std::min(kCoreMemory, host));
}

}  // namespace

bool Core::Reserve(uint64_t bytes) {
  for (int attempt = 0; attempt < 2; ++attempt) {
    uint64_t before = bytes_allocated.fetch_add(bytes, std::memory_order_relaxed);
    uint64_t after = before + bytes;
    if (after >= before && after + pool.bytes() <= capacity) {
      if (after > bytes_allocated_peak.load(std::memory_order_relaxed)) bytes_allocated_peak = after;
      return true;
    }
    Unreserve(bytes);
    if (pool.bytes() == 0) break;
    pool.Clear();
  }
  return false;
}

NRT_STATUS CheckRunning(const char* function) {
  if (Plugin::forked()) return Plugin::FailForked(function);
  switch (TheRuntime().state.load(std::memory_order_acquire)) {
    case State::kRunning:
      return NRT_SUCCESS;
    case State::kClosed:
      return Fail(NRT_CLOSED, "%s: called after nrt_close", function);
    default:
      return Fail(NRT_UNINITIALIZED, "%s: nrt_init has not been called", function);
  }
}

Core* GetCore(const char* function, int vnc) {
  Runtime& runtime = TheRuntime();
  uint32_t count = runtime.num_cores.load(std::memory_order_acquire);
  if (vnc >= 0 && static_cast<uint32_t>(vnc) < count) return runtime.cores.load(std::memory_order_acquire)[vnc];
  Fail(NRT_INVALID, "%s: there is no core %d; this process has %u", function, vnc, count);
  return nullptr;
}

}  // namespace neuroncore

using namespace neuroncore;

NEURONCORE_EXPORT NRT_STATUS nrt_init(nrt_framework_type_t framework, const char*, const char*) {
  return Guarded("nrt_init", [&]() -> NRT_STATUS {
    if (Plugin::forked()) return Plugin::FailForked("nrt_init");
    Runtime& runtime = TheRuntime();
    std::lock_guard guard(runtime.mutex);
    if (runtime.state == State::kRunning) return NRT_SUCCESS;
    if (framework < NRT_FRAMEWORK_TYPE_NO_FW || framework > NRT_FRAMEWORK_TYPE_PRECHECK) {
      return Fail(NRT_INVALID, "nrt_init: %d is not a framework type", static_cast<int>(framework));
    }
    uint32_t first, count;
    if (!VisibleCores(&first, &count)) return NRT_INVALID;
    Plugin* plugin = Plugin::WithClient();
    if (plugin == nullptr) return NRT_FAILURE;
    auto* cores = new Core*[count];
    for (uint32_t i = 0; i < count; ++i) {
      Core* core = cores[i] = new Core;
      core->index = static_cast<int>(i);
      core->physical_index = static_cast<int>(first + i);
      core->plugin = plugin;
      core->capacity = CoreCapacity();
      core->pool.SetLimit(std::min<uint64_t>(kPoolLimit, core->capacity / 8));
    }
    runtime.cores = cores;
    runtime.num_cores = count;
    runtime.state = State::kRunning;
    return NRT_SUCCESS;
  });
}

NEURONCORE_EXPORT void nrt_close(void) {
  Runtime& runtime = TheRuntime();
  if (Plugin::forked()) return;
  std::lock_guard guard(runtime.mutex);
  if (runtime.state != State::kRunning) return;
  runtime.state = State::kClosed;
  for (uint32_t i = 0; i < runtime.num_cores; ++i) {
    Core* core = runtime.cores.load()[i];
    std::lock_guard idle(core->execution);
    core->closed = true;
    core->pool.SetLimit(0);
    core->pool.Clear();
  }
  runtime.num_cores = 0;
}

NEURONCORE_EXPORT NRT_STATUS nrt_get_version(nrt_version_t* version, size_t size) {
  if (version == nullptr) return Fail(NRT_INVALID, "nrt_get_version: null argument");
  // The ABI that is implemented is that of the 2.x runtimes.
  nrt_version_t ours = {2, 0, 0, 0, {}, {}};
  snprintf(ours.rt_detail, sizeof(ours.rt_detail), "software NeuronCore %s", kVersion);
  snprintf(ours.git_hash, sizeof(ours.git_hash), "software");
  memcpy(version, &ours, std::min(size, sizeof(ours)));
  return NRT_SUCCESS;
}

NEURONCORE_EXPORT NRT_STATUS nrt_get_instance_info(nrt_instance_info_t* info, size_t size) {
  if (info == nullptr) return Fail(NRT_INVALID, "nrt_get_instance_info: null argument");
  const char* target = getenv("NEURON_PLATFORM_TARGET_OVERRIDE");
  bool trn3 = target != nullptr && (strcmp(target, "trn3") == 0 || strcmp(target, "gen4") == 0);
  nrt_instance_info_t ours = {trn3 ? NRT_INSTANCE_TRN3 : NRT_INSTANCE_TRN2, NRT_INSTANCE_SIZE_UNKNOWN, {}, {}};
  snprintf(ours.arch_name, sizeof(ours.arch_name), "software");
  snprintf(ours.device_revision, sizeof(ours.device_revision), "sw");
  memcpy(info, &ours, std::min(size, sizeof(ours)));
  return NRT_SUCCESS;
}

namespace {

NRT_STATUS CountCores(const char* function, uint32_t* count, bool visible) {
  return Guarded(function, [&]() -> NRT_STATUS {
    if (count == nullptr) return Fail(NRT_INVALID, "%s: null argument", function);
    *count = 0;
    // Without a usable plugin this machine has no software cores.
    if (Plugin::Get() == nullptr) return NRT_SUCCESS;
    uint32_t first = 0;
    uint32_t number = TotalCores();
    if (visible && !VisibleCores(&first, &number)) return NRT_INVALID;
    *count = number;
    return NRT_SUCCESS;
  });
}

}  // namespace

NEURONCORE_EXPORT NRT_STATUS nrt_get_visible_vnc_count(uint32_t* count) {
  return CountCores("nrt_get_visible_vnc_count", count, true);
}
NEURONCORE_EXPORT NRT_STATUS nrt_get_total_vnc_count(uint32_t* count) {
  return CountCores("nrt_get_total_vnc_count", count, false);
}
NEURONCORE_EXPORT NRT_STATUS nrt_get_visible_nc_count(uint32_t* count) {
  return CountCores("nrt_get_visible_nc_count", count, true);
}
NEURONCORE_EXPORT NRT_STATUS nrt_get_total_nc_count(uint32_t* count) {
  return CountCores("nrt_get_total_nc_count", count, false);
}

NEURONCORE_EXPORT NRT_STATUS nrt_get_vnc_memory_stats(uint32_t vnc, nrt_vnc_memory_stats_t* stats, size_t size_in,
                                                      size_t* size_out) {
  constexpr const char* kName = "nrt_get_vnc_memory_stats";
  if (NRT_STATUS status = CheckRunning(kName)) return status;
  if (stats == nullptr) return Fail(NRT_INVALID, "%s: null argument", kName);
  Core* core = GetCore(kName, static_cast<int>(vnc));
  if (core == nullptr) return NRT_INVALID;
  nrt_vnc_memory_stats_t ours = {core->bytes_allocated + core->pool.bytes(), core->capacity};
  size_t written = std::min(size_in, sizeof(ours));
  memcpy(stats, &ours, written);
  if (size_out != nullptr) *size_out = written;
  return NRT_SUCCESS;
}

NEURONCORE_EXPORT NRT_STATUS neuroncore_get_statistics(int32_t vnc, neuroncore_statistics_t* statistics, size_t size) {
  constexpr const char* kName = "neuroncore_get_statistics";
  if (NRT_STATUS status = CheckRunning(kName)) return status;
  if (statistics == nullptr) return Fail(NRT_INVALID, "%s: null argument", kName);
  Core* core = GetCore(kName, vnc);
  if (core == nullptr) return NRT_INVALID;
  const auto& counters = core->counters;
  neuroncore_statistics_t ours = {};
  ours.executions = counters.executions.get();
  ours.bytes_adopted = counters.bytes_adopted.get();
  ours.bytes_copied = counters.bytes_copied.get();
  ours.donations = counters.donations.get();
  ours.scratch_reuses = counters.scratch_reuses.get();
  ours.views_created = counters.views_created.get();
  ours.bytes_pooled = core->pool.bytes();
  ours.bytes_read = counters.bytes_read.get();
  ours.bytes_written = counters.bytes_written.get();
  ours.execution_ns = counters.execution_ns.get();
  ours.tensors = static_cast<uint64_t>(core->tensors.load());
  ours.bytes_allocated_peak = core->bytes_allocated_peak;
  memcpy(statistics, &ours, std::min(size, sizeof(ours)));
  return NRT_SUCCESS;
}

NEURONCORE_EXPORT uint64_t neuroncore_execution_time_ns(int32_t vnc) {
  if (CheckRunning("neuroncore_execution_time_ns") != NRT_SUCCESS) return 0;
  Core* core = GetCore("neuroncore_execution_time_ns", vnc);
  return core == nullptr ? 0 : core->counters.execution_ns.get();
}
