// SPDX-License-Identifier: Apache-2.0
#include "kernels.h"

#include <array>
#include <atomic>
#include <cstring>
#include <mutex>
#include <utility>
#include <vector>

#include "errors.h"
#include "pjrt_api.h"
#include "plugin.h"

namespace neuroncore {
namespace {

// XLA hands a handler no context, so every kernel gets a function of its own out of a fixed number of them.
constexpr size_t kMaximumKernels = 512;

struct Kernel {
  std::string name;
  std::atomic<neuroncore_kernel_fn> function{nullptr};
  std::atomic<void*> context{nullptr};
  bool registered = false;
};

struct Registry {
  std::mutex mutex;
  std::array<Kernel, kMaximumKernels> kernels;
  size_t count = 0;
  const Plugin* plugin = nullptr;  // once there is a client
};

struct BuiltIn {
  const char* name;
  neuroncore_kernel_fn function;
};

constexpr std::string_view kReservedPrefix = "neuroncore.";

// Results are what their memory holds.
int Undefined(void*, const neuroncore_kernel_call_t*, char*, size_t) { return 0; }

constexpr BuiltIn kBuiltIns[] = {
    {"neuroncore.check_index", CheckIndex},
    {"neuroncore.undefined", Undefined},
    {"neuroncore.all_reduce", AllReduceKernel},
    {"neuroncore.all_gather", AllGatherKernel},
    {"neuroncore.reduce_scatter", ReduceScatterKernel},
    {"neuroncore.all_to_all", AllToAllKernel},
    {"neuroncore.broadcast", BroadcastKernel},
};

Registry& TheRegistry() {
  static Registry* registry = [] {
    auto* created = new Registry;
    for (const BuiltIn& built_in : kBuiltIns) {
      Kernel& kernel = created->kernels[created->count++];
      kernel.name = built_in.name;
      kernel.function = built_in.function;
    }
    return created;
  }();
  return *registry;
}

// xla_data.proto numbers its types differently from the PJRT C API.
int32_t ElementTypeOf(int ffi_type) {
  switch (ffi_type) {
    case 10:
      return NEURONCORE_TYPE_F16;
    case 11:
      return NEURONCORE_TYPE_F32;
    case 12:
      return NEURONCORE_TYPE_F64;
    case 15:
      return NEURONCORE_TYPE_C64;
    case 16:
      return NEURONCORE_TYPE_BF16;
    case 18:
      return NEURONCORE_TYPE_C128;
    case 19:
      return NEURONCORE_TYPE_F8E5M2;
    case 20:
      return NEURONCORE_TYPE_F8E4M3FN;
    case 23:
      return NEURONCORE_TYPE_F8E4M3B11FNUZ;
    case 24:
      return NEURONCORE_TYPE_F8E5M2FNUZ;
    case 25:
      return NEURONCORE_TYPE_F8E4M3FNUZ;
    case 28:
      return NEURONCORE_TYPE_F8E4M3;
    case 29:
      return NEURONCORE_TYPE_F8E3M4;
    default:
      return ffi_type >= 1 && ffi_type <= 9 ? ffi_type : 0;  // PRED, S8...S64, U8...U64 agree
  }
}

pjrt::FfiError* Error(const pjrt::FfiCallFrame& frame, int code, const std::string& message) {
  pjrt::FfiErrorCreate create = {sizeof(create), nullptr, message.c_str(), code};
  return frame.api->error_create(&create);
}

void Convert(const pjrt::FfiBuffers& buffers, std::vector<neuroncore_buffer_t>* converted) {
  converted->reserve(static_cast<size_t>(buffers.size));
  for (int64_t i = 0; i < buffers.size; ++i) {
    auto* buffer = static_cast<const pjrt::FfiBuffer*>(buffers.buffers[i]);
    converted->push_back(
        {buffer->data, ElementTypeOf(buffer->element_type), static_cast<int32_t>(buffer->rank), buffer->dims});
  }
}

std::string ConfigOf(const pjrt::FfiAttributes& attributes) {
  for (int64_t i = 0; i < attributes.size; ++i) {
    const pjrt::FfiSpan& name = *attributes.names[i];
    if (std::string_view(name.data, name.size) != "config") continue;
    if (attributes.kinds[i] != pjrt::kFfiAttributeString) break;
    auto* value = static_cast<const pjrt::FfiSpan*>(attributes.values[i]);
    return {value->data, value->size};
  }
  return {};
}

// What the kernel returns; if that is not 0, `text` becomes a message that names the kernel.
int Run(const Kernel& kernel, const neuroncore_kernel_call_t& call, std::string* text) {
  char message[2048];
  message[0] = '\0';
  int result = kernel.function.load()(kernel.context.load(), &call, message, sizeof(message));
  if (result == 0) return 0;
  message[sizeof(message) - 1] = '\0';
  *text = kernel.name + ": " + (message[0] != '\0' ? message : "failed with code " + std::to_string(result));
  return result;
}

// neuroncore_kernel_call_t's `schedule`; `pool` is the call frame.
bool Schedule(void* pool, void (*task)(void*), void* data) {
  const auto& frame = *static_cast<const pjrt::FfiCallFrame*>(pool);
  pjrt::FfiSchedule schedule = {sizeof(schedule), nullptr, frame.context, task, data};
  pjrt::FfiError* error = frame.api->thread_pool_schedule(&schedule);
  if (error == nullptr) return true;
  pjrt::FfiErrorDestroy destroy = {sizeof(destroy), nullptr, error};
  frame.api->error_destroy(&destroy);
  return false;
}

pjrt::FfiError* Call(const Kernel& kernel, const pjrt::FfiCallFrame& frame) {
  std::vector<neuroncore_buffer_t> inputs, outputs;
  Convert(frame.arguments, &inputs);
  Convert(frame.results, &outputs);
  std::string config = ConfigOf(frame.attributes);
  std::string text;
  const bool has_pool = frame.api->struct_size >= sizeof(pjrt::FfiApi);
  int result = Run(kernel,
                   {inputs.data(), inputs.size(), outputs.data(), outputs.size(), config.c_str(),
                    has_pool ? Schedule : nullptr, const_cast<pjrt::FfiCallFrame*>(&frame)},
                   &text);
  if (result == 0) return nullptr;
  return Error(frame, result == kKernelOutOfBounds ? pjrt::kFfiOutOfRange : pjrt::kFfiInternal, text);
}

// What XLA calls for kernel number `index`. Nothing may be thrown into XLA.
template <size_t index>
pjrt::FfiError* Handler(pjrt::FfiCallFrame* frame) {
  // While it is being registered, a handler is only asked which version of the interface it speaks.
  for (pjrt::Extension* extension = frame->extension; extension != nullptr; extension = extension->next) {
    if (extension->type != pjrt::kFfiMetadataExtension) continue;
    pjrt::FfiVersion& version = reinterpret_cast<pjrt::FfiMetadataExtension*>(extension)->metadata->version;
    // We use what has been there since version 0.1, so we speak whatever the plugin does.
    version.major = frame->api != nullptr ? frame->api->version.major : 0;
    version.minor = frame->api != nullptr ? frame->api->version.minor : 1;
    return nullptr;
  }
  if (frame->stage != pjrt::kFfiStageExecute) return nullptr;
  const Kernel& kernel = TheRegistry().kernels[index];
  try {
    return Call(kernel, *frame);
  } catch (const std::exception& exception) {
    return Error(*frame, pjrt::kFfiInternal, kernel.name + ": " + exception.what());
  } catch (...) {
    return Error(*frame, pjrt::kFfiInternal, kernel.name + ": unknown C++ exception");
  }
}

using HandlerFunction = pjrt::FfiError* (*)(pjrt::FfiCallFrame*);

template <size_t... indices>
constexpr std::array<HandlerFunction, sizeof...(indices)> MakeHandlers(std::index_sequence<indices...>) {
  return {Handler<indices>...};
}

constexpr auto kHandlers = MakeHandlers(std::make_index_sequence<kMaximumKernels>());

// With the registry's mutex held.
bool RegisterOne(const Plugin& plugin, Registry* registry, size_t index) {
  Kernel& kernel = registry->kernels[index];
  if (kernel.registered) return true;
  return kernel.registered = plugin.RegisterHandler(kernel.name, kHandlers[index]);
}

}  // namespace

bool RegisterPendingKernels(const Plugin& plugin) {
  Registry& registry = TheRegistry();
  std::lock_guard guard(registry.mutex);
  if (registry.plugin == &plugin) return true;
  for (size_t i = 0; i < registry.count; ++i) {
    if (!RegisterOne(plugin, &registry, i)) return false;
  }
  registry.plugin = &plugin;
  return true;
}

ptrdiff_t FindKernel(std::string_view name) {
  if (name.starts_with(kReservedPrefix)) return -1;
  Registry& registry = TheRegistry();
  std::lock_guard guard(registry.mutex);
  for (size_t i = 0; i < registry.count; ++i) {
    if (registry.kernels[i].name == name) return static_cast<ptrdiff_t>(i);
  }
  return -1;
}

NRT_STATUS CallKernel(size_t index, const neuroncore_kernel_call_t& call) {
  const Kernel& kernel = TheRegistry().kernels[index];
  std::string text;
  try {
    const int result = Run(kernel, call, &text);
    if (result == 0) return NRT_SUCCESS;
    return Fail(result == kKernelOutOfBounds ? NRT_EXEC_OOB : NRT_EXEC_COMPLETED_WITH_ERR, "%s", text.c_str());
  } catch (const std::exception& exception) {
    return Fail(NRT_EXEC_COMPLETED_WITH_ERR, "%s: %s", kernel.name.c_str(), exception.what());
  } catch (...) {
    return Fail(NRT_EXEC_COMPLETED_WITH_ERR, "%s: unknown C++ exception", kernel.name.c_str());
  }
}

std::string_view ConfigValue(std::string_view config, std::string_view key) {
  while (!config.empty()) {
    std::string_view entry = config.substr(0, config.find(';'));
    config.remove_prefix(std::min(config.size(), entry.size() + 1));
    size_t equals = entry.find('=');
    if (equals != std::string_view::npos && entry.substr(0, equals) == key) return entry.substr(equals + 1);
  }
  return {};
}

}  // namespace neuroncore

using namespace neuroncore;

NEURONCORE_EXPORT NRT_STATUS neuroncore_register_kernel(const char* name, neuroncore_kernel_fn function,
                                                        void* context) {
  constexpr const char* kName = "neuroncore_register_kernel";
  return Guarded(kName, [&]() -> NRT_STATUS {
    if (name == nullptr || *name == '\0' || function == nullptr) return Fail(NRT_INVALID, "%s: null argument", kName);
    if (std::string_view(name).substr(0, kReservedPrefix.size()) == kReservedPrefix) {
      return Fail(NRT_INVALID, "%s: %s: names that start with \"neuroncore.\" are the library's own", kName, name);
    }
    Registry& registry = TheRegistry();
    std::lock_guard guard(registry.mutex);
    size_t index = 0;
    while (index < registry.count && registry.kernels[index].name != name) ++index;
    if (index == kMaximumKernels) return Fail(NRT_RESOURCE, "%s: more than %zu kernels", kName, kMaximumKernels);
    Kernel& kernel = registry.kernels[index];
    kernel.name = name;
    kernel.context = context;
    kernel.function = function;
    registry.count = std::max(registry.count, index + 1);
    if (registry.plugin != nullptr && !RegisterOne(*registry.plugin, &registry, index)) return NRT_FAILURE;
    return NRT_SUCCESS;
  });
}

NEURONCORE_EXPORT bool neuroncore_has_kernel(const char* name) {
  if (name == nullptr) return false;
  Registry& registry = TheRegistry();
  std::lock_guard guard(registry.mutex);
  for (size_t i = 0; i < registry.count; ++i) {
    if (registry.kernels[i].name == name) return true;
  }
  return false;
}
