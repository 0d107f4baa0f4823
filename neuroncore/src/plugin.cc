// SPDX-License-Identifier: Apache-2.0
#include "plugin.h"

#include <dlfcn.h>
#include <neuroncore/neuroncore.h>
#include <pthread.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <mutex>
#include <vector>

#include "compile_options.h"
#include "errors.h"
#include "kernels.h"
#include "sha256.h"
#include "version.h"

namespace neuroncore {
namespace {

constexpr const char* kPluginVariable = "TORCH_NEURONX_PJRT_PLUGIN";

// What XLA's code generator asks of the processor. Two machines with equal features share compiled programs.
std::string CpuFeatures() {
  std::ifstream cpuinfo("/proc/cpuinfo");
  std::string line;
  while (std::getline(cpuinfo, line)) {
    if (line.rfind("flags", 0) == 0 || line.rfind("Features", 0) == 0) return line.substr(line.find(':') + 1);
  }
  return "unknown";
}

pjrt::NamedValue Option(const char* name, int type) {
  pjrt::NamedValue value = {};
  value.struct_size = sizeof(value);
  value.name = name;
  value.name_size = strlen(name);
  value.type = type;
  value.value_size = 1;
  return value;
}

std::mutex& LoadMutex() {
  static auto* mutex = new std::mutex;
  return *mutex;
}

}  // namespace

Plugin* Plugin::Get() {
  static Plugin* loaded = nullptr;  // guarded by the mutex; never destroyed
  std::lock_guard guard(LoadMutex());
  if (loaded != nullptr) return loaded;
  const char* path = getenv(kPluginVariable);
  if (path == nullptr || *path == '\0') {
    Fail(NRT_FAILURE, "%s is not set: it names the XLA CPU PJRT plugin (a .so file) that executes programs",
         kPluginVariable);
    return nullptr;
  }
  auto* plugin = new Plugin;
  if (!plugin->Load(path)) {
    delete plugin;
    return nullptr;
  }
  return loaded = plugin;
}

std::atomic<bool> Plugin::forked_{false};

NRT_STATUS Plugin::FailForked(const char* function) {
  return Fail(NRT_FAILURE,
              "%s: this process was forked from one that uses the software NeuronCore; start it afresh "
              "instead (multiprocessing: \"spawn\" or \"forkserver\")",
              function);
}

Plugin* Plugin::WithClient() {
  // Before any lock: in a forked child it may be held by a thread that is not there.
  if (forked()) {
    FailForked("neuroncore");
    return nullptr;
  }
  Plugin* plugin = Get();
  if (plugin == nullptr) return nullptr;
  {
    std::lock_guard guard(LoadMutex());
    if (plugin->client_ != nullptr) return plugin;
    if (!plugin->CreateClient()) return nullptr;
  }
  return RegisterPendingKernels(*plugin) ? plugin : nullptr;
}

bool Plugin::Load(const std::string& path) {
  // XLA logs harmless things as errors (about processor features, for one). Its real errors reach the caller as text.
  setenv("TF_CPP_MIN_LOG_LEVEL", "3", /*overwrite=*/0);
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    Fail(NRT_FAILURE, "cannot load the PJRT plugin named by %s: %s", kPluginVariable, dlerror());
    return false;
  }
  auto* get_api = reinterpret_cast<const pjrt::Api* (*)()>(dlsym(library, "GetPjrtApi"));
  const pjrt::Api* table = get_api == nullptr ? nullptr : get_api();
  if (table == nullptr) {
    Fail(NRT_FAILURE, "%s=%s is not a PJRT plugin: it has no GetPjrtApi()", kPluginVariable, path.c_str());
    return false;
  }
  memcpy(&api_, table, std::min(sizeof(api_), table->struct_size));
  extensions_ = api_.extension;
  if (api_.version.major != 0) {
    Fail(NRT_FAILURE, "%s=%s speaks PJRT API %d.%d; only major version 0 is known", kPluginVariable, path.c_str(),
         api_.version.major, api_.version.minor);
    return false;
  }
  const std::pair<const char*, bool> required[] = {
      {"PJRT_Error_Destroy", api_.error_destroy},
      {"PJRT_Error_Message", api_.error_message},
      {"PJRT_Client_Create", api_.client_create},
      {"PJRT_Client_Compile", api_.client_compile},
      {"PJRT_LoadedExecutable_Execute", api_.loaded_executable_execute},
      {"PJRT_Event_Await", api_.event_await},
      {"PJRT_Event_Destroy", api_.event_destroy},
      {"PJRT_Buffer_Destroy", api_.buffer_destroy},
      {"PJRT_Buffer_UnsafePointer", api_.buffer_unsafe_pointer},
      {"PJRT_Client_CreateViewOfDeviceBuffer", api_.client_create_view},
  };
  for (auto [name, present] : required) {
    if (present) continue;
    Fail(NRT_FAILURE, "%s=%s (PJRT API %d.%d) lacks %s", kPluginVariable, path.c_str(), api_.version.major,
         api_.version.minor, name);
    return false;
  }
  if (api_.plugin_initialize != nullptr) {
    auto initialize = pjrt::Arguments<pjrt::PluginInitialize>();
    std::string error = TakeError(api_.plugin_initialize(&initialize));
    if (!error.empty()) {
      Fail(NRT_FAILURE, "the PJRT plugin %s failed to initialize: %s", path.c_str(), error.c_str());
      return false;
    }
  }
  path_ = path;
  std::string file = path.substr(path.rfind('/') + 1);
  struct stat status = {};
  stat(path.c_str(), &status);
  const char* xla_flags = getenv("XLA_FLAGS");
  std::string api_version = std::to_string(api_.version.major) + "." + std::to_string(api_.version.minor);
  // The size stands for the build of the plugin: its platform version is the same text in all of them.
  fingerprint_ = std::string("neuroncore-") + kVersion + ";neff=" + std::to_string(kNeffFormat) + ";plugin=" + file +
                 ":" + std::to_string(status.st_size) + ";pjrt=" + api_version +
                 ";cpu=" + Sha256::Hex(CpuFeatures()).substr(0, 16) +
                 ";xla_flags=" + (xla_flags != nullptr ? Sha256::Hex(xla_flags).substr(0, 16) : "");
  description_ = std::string("software NeuronCore ") + kVersion + " on " + file + " (PJRT API " + api_version + ")";
  return true;
}

bool Plugin::CreateClient() {
  // One device, because a core runs one program at a time. Synchronous, because the caller's queue is the asynchrony:
  // XLA's own would only add a thread hop to every small program. Some plugins refuse names they do not know.
  pjrt::NamedValue options[2] = {Option("cpu_device_count", pjrt::kNamedInt64),
                                 Option("asynchronous", pjrt::kNamedBool)};
  options[0].int64_value = 1;
  options[1].bool_value = false;
  std::string error;
  for (size_t count : {2, 1, 0}) {
    auto create = pjrt::Arguments<pjrt::ClientCreate>();
    create.options = options;
    create.num_options = count;
    std::string refused = TakeError(api_.client_create(&create));
    if (refused.empty()) {
      client_ = create.client;
      break;
    }
    if (error.empty()) error = refused;
  }
  if (client_ == nullptr) {
    Fail(NRT_FAILURE, "the PJRT plugin %s cannot create a client: %s", path_.c_str(), error.c_str());
    return false;
  }
  auto devices = pjrt::Arguments<pjrt::ClientDevices>();
  devices.client = client_;
  error = TakeError(api_.client_addressable_devices(&devices));
  if (!error.empty() || devices.num_devices == 0) {
    client_ = nullptr;
    Fail(NRT_FAILURE, "the PJRT plugin %s has no device: %s", path_.c_str(), error.c_str());
    return false;
  }
  pthread_atfork(nullptr, nullptr, [] { forked_ = true; });
  device_ = devices.devices[0];
  auto memory = pjrt::Arguments<pjrt::DeviceDefaultMemory>();
  memory.device = device_;
  if (api_.device_default_memory != nullptr && TakeError(api_.device_default_memory(&memory)).empty()) {
    memory_ = memory.memory;
  }
  return true;
}

std::string Plugin::TakeError(pjrt::Error* error, int* code) const {
  if (error == nullptr) return {};
  auto message = pjrt::Arguments<pjrt::ErrorMessage>();
  message.error = error;
  api_.error_message(&message);
  std::string text(message.message, message.message_size);
  if (code != nullptr && api_.error_get_code != nullptr) {
    auto get_code = pjrt::Arguments<pjrt::ErrorGetCode>();
    get_code.error = error;
    api_.error_get_code(&get_code);
    *code = get_code.code;
  }
  auto destroy = pjrt::Arguments<pjrt::ErrorDestroy>();
  destroy.error = error;
  api_.error_destroy(&destroy);
  return text.empty() ? "(no message)" : text;
}

pjrt::LoadedExecutable* Plugin::Compile(const std::string& program, const CompileChoices& wanted) const {
  CompileChoices choices{wanted.older_emitters && has_older_emitters_, wanted.single_thread && has_pass_switches_,
                         wanted.wide_vectors && has_vector_width_};
  std::string error;
  do {
    pjrt::LoadedExecutable* executable = CompileWith(program, CompileOptions(choices), &error);
    if (executable != nullptr) {
      if (wanted.older_emitters && !choices.older_emitters) has_older_emitters_ = false;
      if (wanted.single_thread && !choices.single_thread) has_pass_switches_ = false;
      if (wanted.wide_vectors && !choices.wide_vectors) has_vector_width_ = false;
      return executable;
    }
  } while (choices.TakeBack(error));
  Fail(NRT_FAILURE, "%s", error.c_str());
  return nullptr;
}

pjrt::LoadedExecutable* Plugin::CompileWith(const std::string& text, const std::string& options,
                                            std::string* error) const {
  auto program = pjrt::Arguments<pjrt::Program>();
  program.code = text.data();
  program.code_size = text.size();
  program.format = "mlir";
  program.format_size = 4;
  auto compile = pjrt::Arguments<pjrt::ClientCompile>();
  compile.client = client_;
  compile.program = &program;
  compile.options = options.data();
  compile.options_size = options.size();
  *error = TakeError(api_.client_compile(&compile));
  return error->empty() ? compile.executable : nullptr;
}

bool Plugin::CanSerialize() const {
  return api_.executable_serialize != nullptr && api_.deserialize_and_load != nullptr &&
         api_.loaded_executable_get_executable != nullptr;
}

bool Plugin::Serialize(pjrt::LoadedExecutable* loaded, std::string* bytes) const {
  auto get = pjrt::Arguments<pjrt::LoadedExecutableGetExecutable>();
  get.loaded = loaded;
  std::string error = TakeError(api_.loaded_executable_get_executable(&get));
  if (error.empty()) {
    auto serialize = pjrt::Arguments<pjrt::ExecutableSerialize>();
    serialize.executable = get.executable;
    error = TakeError(api_.executable_serialize(&serialize));
    if (error.empty()) {
      bytes->assign(serialize.bytes, serialize.bytes_size);
      if (serialize.deleter != nullptr) serialize.deleter(serialize.serialized);
    }
    auto destroy = pjrt::Arguments<pjrt::ExecutableDestroy>();
    destroy.executable = get.executable;
    TakeError(api_.executable_destroy(&destroy));
  }
  if (error.empty()) return true;
  Fail(NRT_FAILURE, "cannot serialize the executable: %s", error.c_str());
  return false;
}

pjrt::LoadedExecutable* Plugin::Deserialize(const char* bytes, size_t size) const {
  auto load = pjrt::Arguments<pjrt::DeserializeAndLoad>();
  load.client = client_;
  load.bytes = bytes;
  load.bytes_size = size;
  std::string error = TakeError(api_.deserialize_and_load(&load));
  if (error.empty()) return load.executable;
  Fail(NRT_FAILURE, "cannot load the executable: %s", error.c_str());
  return nullptr;
}

void Plugin::Destroy(pjrt::LoadedExecutable* executable) const {
  auto destroy = pjrt::Arguments<pjrt::LoadedExecutableDestroy>();
  destroy.executable = executable;
  TakeError(api_.loaded_executable_destroy(&destroy));
}

double Plugin::Cost(pjrt::LoadedExecutable* loaded, const char* property) const {
  if (api_.executable_cost_analysis == nullptr || api_.loaded_executable_get_executable == nullptr) return -1;
  auto get = pjrt::Arguments<pjrt::LoadedExecutableGetExecutable>();
  get.loaded = loaded;
  if (!TakeError(api_.loaded_executable_get_executable(&get)).empty()) return -1;
  auto analysis = pjrt::Arguments<pjrt::ExecutableCostAnalysis>();
  analysis.executable = get.executable;
  double value = -1;
  if (TakeError(api_.executable_cost_analysis(&analysis)).empty()) {
    for (size_t i = 0; i < analysis.num_properties; ++i) {
      const pjrt::NamedValue& entry = analysis.properties[i];
      if (std::string(entry.name, entry.name_size) == property && entry.type == pjrt::kNamedFloat) {
        value = entry.float_value;
      }
    }
  }
  auto destroy = pjrt::Arguments<pjrt::ExecutableDestroy>();
  destroy.executable = get.executable;
  TakeError(api_.executable_destroy(&destroy));
  return value;
}

bool Plugin::CanAllocate() const { return api_.client_create_uninitialized_buffer != nullptr && memory_ != nullptr; }

// Buffers are passed to programs as plain bytes: XLA's CPU client compares sizes, not shapes or types.
pjrt::Buffer* Plugin::Allocate(size_t bytes) const {
  const int64_t dims[] = {static_cast<int64_t>(bytes)};
  auto create = pjrt::Arguments<pjrt::ClientCreateUninitializedBuffer>();
  create.client = client_;
  create.dims = dims;
  create.num_dims = 1;
  create.element_type = static_cast<int>(pjrt::Type::kU8);
  create.memory = memory_;
  std::string error = TakeError(api_.client_create_uninitialized_buffer(&create));
  if (error.empty()) return create.buffer;
  Fail(NRT_RESOURCE, "cannot allocate %zu bytes of host memory: %s", bytes, error.c_str());
  return nullptr;
}

pjrt::Buffer* Plugin::View(void* data, size_t bytes) const {
  const int64_t dims[] = {static_cast<int64_t>(bytes)};
  auto create = pjrt::Arguments<pjrt::ClientCreateView>();
  create.client = client_;
  create.data = data;
  create.dims = dims;
  create.num_dims = 1;
  create.element_type = static_cast<int>(pjrt::Type::kU8);
  create.device = device_;
  create.on_delete = [](void*, void*) {};
  std::string error = TakeError(api_.client_create_view(&create));
  if (error.empty()) return create.buffer;
  Fail(NRT_FAILURE, "cannot create a view of %zu bytes: %s", bytes, error.c_str());
  return nullptr;
}

void Plugin::Destroy(pjrt::Buffer* buffer) const {
  auto destroy = pjrt::Arguments<pjrt::BufferArgument>();
  destroy.buffer = buffer;
  TakeError(api_.buffer_destroy(&destroy));
}

void* Plugin::Pointer(pjrt::Buffer* buffer) const {
  auto get = pjrt::Arguments<pjrt::BufferPointer>();
  get.buffer = buffer;
  std::string error = TakeError(api_.buffer_unsafe_pointer(&get));
  if (error.empty()) return get.pointer;
  Fail(NRT_FAILURE, "a buffer has no address: %s", error.c_str());
  return nullptr;
}

bool Plugin::RegisterHandler(const std::string& name, pjrt::FfiError* (*handler)(pjrt::FfiCallFrame*)) const {
  const pjrt::Extension* extension = extensions_;
  while (extension != nullptr && extension->type != pjrt::kExtensionFfi) extension = extension->next;
  if (extension == nullptr) {
    Fail(NRT_FAILURE, "the PJRT plugin %s has no FFI extension: host kernels are not possible", path_.c_str());
    return false;
  }
  pjrt::FfiRegisterHandler arguments = {};
  arguments.struct_size = sizeof(arguments);
  arguments.name = name.data();
  arguments.name_size = name.size();
  arguments.handler = reinterpret_cast<void*>(handler);
  arguments.platform = "Host";
  arguments.platform_size = 4;
  auto* ffi = reinterpret_cast<const pjrt::FfiExtension*>(extension);
  std::string error = TakeError(ffi->register_handler(&arguments));
  if (error.empty()) return true;
  Fail(NRT_FAILURE, "cannot register the kernel %s: %s", name.c_str(), error.c_str());
  return false;
}

}  // namespace neuroncore

NEURONCORE_EXPORT const char* neuroncore_fingerprint(void) {
  neuroncore::Plugin* plugin = neuroncore::Plugin::Get();
  return plugin == nullptr ? "" : plugin->fingerprint().c_str();
}

NEURONCORE_EXPORT const char* neuroncore_plugin_path(void) {
  neuroncore::Plugin* plugin = neuroncore::Plugin::Get();
  return plugin == nullptr ? "" : plugin->path().c_str();
}

NEURONCORE_EXPORT const char* neuroncore_description(void) {
  neuroncore::Plugin* plugin = neuroncore::Plugin::Get();
  return plugin == nullptr ? neuroncore::LastError() : plugin->description().c_str();
}
