// SPDX-License-Identifier: Apache-2.0
#include <nrt/runtime.h>

#include <dlfcn.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <mutex>

#include <ATen/Parallel.h>
#include <c10/util/Exception.h>

#include <nrt/compiler.h>
#include <nrt/environment.h>
#include <nrt/gil.h>
#include <nrt/plugin.h>
#include <nrt/status.h>

namespace neuron {
namespace {

// Never destroyed: the worker threads of the launch queues outlive the statics of this library.
struct State {
  std::mutex mutex;
  void* library = nullptr;
  bool software = false;
  Runtime table;
  int cores = 0;
  int devices = 0;       // as many as cores, or, under a launcher, one for each process of the machine
  int first_device = 0;  // the device that core 0 of this process stands for
};

State& state() {
  static State* leaked = new State;
  return *leaked;
}

std::atomic<const Runtime*> g_initialized{nullptr};
std::atomic<bool> g_bad_fork{false};
std::atomic<bool> g_loaded{false};  // the library is open and its cores are counted

constexpr const char* kVendorLibrary = "libnrt.so.1";
constexpr const char* kVendorPath = "/opt/aws/neuron/lib/libnrt.so.1";
constexpr const char* kVendorDevice = "/dev/neuron0";

void* open_vendor_library() {
  if (void* library = dlopen(kVendorLibrary, RTLD_NOW | RTLD_LOCAL)) return library;
  return dlopen(kVendorPath, RTLD_NOW | RTLD_LOCAL);
}

// libneuroncore.so lies beside this extension.
std::string software_library_path() {
  Dl_info info{};
  TORCH_CHECK(dladdr(reinterpret_cast<void*>(&state), &info) != 0, "dladdr cannot find this extension");
  const std::string self = info.dli_fname;
  return self.substr(0, self.rfind('/') + 1) + "libneuroncore.so";
}

bool choose_software() {
  switch (environment::runtime()) {
    case environment::RuntimeChoice::Nrt:
      return false;
    case environment::RuntimeChoice::Software:
      return true;
    case environment::RuntimeChoice::Auto:
      break;
  }
  if (access(kVendorDevice, F_OK) != 0) return true;
  void* vendor = open_vendor_library();
  if (vendor == nullptr) return true;
  dlclose(vendor);
  return false;
}

template <typename Function>
void resolve(void* library, const char* name, bool required, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  TORCH_CHECK(function != nullptr || !required, "The Neuron runtime library lacks the function ", name,
              ". It is too old, or not a Neuron runtime: update it, or set TORCH_NEURONX_RUNTIME=software.");
}

void load_library(State& s) {
  if (s.library != nullptr) return;
  const bool software = choose_software();
  void* library = nullptr;
  if (software) {
    // The kernels of ATen that programs call take the same share as XLA.
    const int share = environment::share_processors();
    if (share > 0 && !environment::threads_given() && at::get_num_threads() > share) at::set_num_threads(share);
    const std::string path = software_library_path();
    library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    TORCH_CHECK(library != nullptr, "The software NeuronCore cannot be loaded: ", dlerror(),
                ". Reinstall torch-neuronx (`make setup` in a checkout).");
  } else {
    library = open_vendor_library();
    TORCH_CHECK(library != nullptr, "TORCH_NEURONX_RUNTIME=nrt, but ", kVendorLibrary, " cannot be loaded: ", dlerror(),
                ". Install the AWS Neuron runtime, or set TORCH_NEURONX_RUNTIME=software.");
    // One process per core: under a launcher each process claims the core of its own rank only.
    const int rank = environment::local_rank();
    if (rank >= 0 && environment::local_world_size() > 1 && !environment::visible_cores_given()) {
      environment::set_visible_cores(std::to_string(rank));
      s.first_device = rank;
      s.devices = environment::local_world_size();
    }
  }
#define NEURON_RESOLVE(name) resolve(library, "nrt_" #name, true, s.table.name);
  NEURON_NRT_FUNCTIONS(NEURON_RESOLVE)
#undef NEURON_RESOLVE
#define NEURON_RESOLVE(name) resolve(library, #name, software, s.table.name);
  NEURON_CORE_FUNCTIONS(NEURON_RESOLVE)
#undef NEURON_RESOLVE
  s.software = software;
  s.library = library;
}

void count_cores(State& s) {
  if (s.cores > 0) return;
  uint32_t count = 0;
  const NRT_STATUS status = s.table.get_visible_vnc_count(&count);
  TORCH_CHECK(status == NRT_SUCCESS, "The Neuron runtime cannot count its cores: ", describe_status(status),
              ". Check NEURON_RT_VISIBLE_CORES and NEURON_RT_NUM_CORES.");
  TORCH_CHECK(count > 0, "No NeuronCore is visible to this process. Check NEURON_RT_VISIBLE_CORES",
              s.software ? " and TORCH_NEURONX_SOFTWARE_CORES." : " and `neuron-ls`.");
  s.cores = static_cast<int>(count);
  // c10::DeviceIndex has 8 bits, one for the sign.
  s.devices = std::min(std::max(s.devices, s.first_device + s.cores), 127);
  g_loaded.store(true, std::memory_order_release);
}

// Loads the library and counts the cores. Raises what is wrong.
void load() {
  if (C10_LIKELY(g_loaded.load(std::memory_order_acquire))) return;
  GilRelease no_gil;
  State& s = state();
  bool software = false;
  {
    std::lock_guard<std::mutex> lock(s.mutex);
    if (s.cores > 0) return;
    load_library(s);
    software = s.software;
  }
  if (software) provide_pjrt_plugin();
  std::lock_guard<std::mutex> lock(s.mutex);
  count_cores(s);
}

void mark_forked_child() {
  if (g_initialized.exchange(nullptr) != nullptr) g_bad_fork = true;
}

[[noreturn]] void raise_bad_fork() {
  TORCH_CHECK(false,
              "Cannot re-initialize neuron in forked subprocess. To use neuron with multiprocessing, you must use "
              "the 'spawn' start method.");
}

const Runtime& initialize() {
  if (g_bad_fork) raise_bad_fork();
  load();
  GilRelease no_gil;
  State& s = state();
  std::lock_guard<std::mutex> lock(s.mutex);
  if (const Runtime* done = g_initialized.load()) return *done;
  const NRT_STATUS status = s.table.init(NRT_FRAMEWORK_TYPE_PYTORCH, "2", "");
  TORCH_CHECK(status == NRT_SUCCESS, "The Neuron runtime does not start: ", describe_status(status),
              s.software ? "."
                         : ". Another process may hold the cores: see `neuron-ls`, or choose others with "
                           "NEURON_RT_VISIBLE_CORES.");
  provide_kernels(s.table);
  pthread_atfork(nullptr, nullptr, &mark_forked_child);
  g_initialized.store(&s.table, std::memory_order_release);
  return s.table;
}

}  // namespace

const Runtime& runtime() {
  const Runtime* table = g_initialized.load(std::memory_order_acquire);
  if (C10_LIKELY(table != nullptr)) return *table;
  return initialize();
}

const Runtime& loaded_runtime() {
  if (g_bad_fork) raise_bad_fork();
  load();
  return state().table;
}

const Runtime* runtime_or_null() {
  try {
    return &runtime();
  } catch (const c10::Error&) {
    return nullptr;
  }
}

bool runtime_initialized() { return g_initialized.load(std::memory_order_acquire) != nullptr; }

bool runtime_is_software() {
  load();
  return state().software;
}

std::string runtime_description() {
  const Runtime& nrt = loaded_runtime();
  if (nrt.neuroncore_description != nullptr) return nrt.neuroncore_description();
  nrt_version_t version{};
  check_status(nrt.get_version(&version, sizeof(version)), "reading the version of the runtime");
  return c10::str("libnrt ", version.rt_major, ".", version.rt_minor, ".", version.rt_patch);
}

std::string platform_target() {
  nrt_instance_info_t info{};
  check_status(runtime().get_instance_info(&info, sizeof(info)), "reading the instance type");
  switch (static_cast<nrt_instance_family_t>(info.family)) {
    case NRT_INSTANCE_INF1:
      return "inf1";
    case NRT_INSTANCE_TRN1:
    case NRT_INSTANCE_TRN1N:
      return "trn1";
    case NRT_INSTANCE_INF2:
    case NRT_INSTANCE_INF2E:
      return "inf2";
    case NRT_INSTANCE_TRN3:
    case NRT_INSTANCE_TRN3PDS98:
      return "trn3";
    case NRT_INSTANCE_UNKNOWN:
      TORCH_CHECK(false,
                  "The runtime does not know what it runs on. Set NEURON_PLATFORM_TARGET_OVERRIDE to trn2 or trn3.");
    default:
      return "trn2";
  }
}

int visible_core_count() noexcept {
  try {
    load();
    return state().devices;
  } catch (const std::exception&) {
    return 0;
  }
}

std::string unavailable_reason() {
  try {
    load();
    return "";
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
}

int core_of(c10::DeviceIndex device) {
  const State& s = state();
  const int core = device - s.first_device;
  TORCH_CHECK(core >= 0 && core < s.cores, "neuron:", static_cast<int>(device),
              " belongs to another process: this one has ", s.cores, " core(s), beginning with neuron:", s.first_device,
              ".");
  return core;
}

bool in_bad_fork() { return g_bad_fork; }

std::string describe_status(NRT_STATUS status) {
  // The table is filled before any call can fail.
  const auto last_error = state().table.neuroncore_last_error;
  return describe_status(status, last_error != nullptr ? last_error() : "");
}

void check_status(NRT_STATUS status, const char* what) {
  if (C10_UNLIKELY(status != NRT_SUCCESS)) raise_status(status, what, describe_status(status));
}

void raise_status(NRT_STATUS status, const char* what, const std::string& description) {
  if (status == NRT_SUCCESS) return;
  const std::string message = c10::str(what, ": ", description, ".");
  TORCH_CHECK_WITH(OutOfMemoryError, status != NRT_RESOURCE, message);
  TORCH_CHECK(false, message);
}

}  // namespace neuron
