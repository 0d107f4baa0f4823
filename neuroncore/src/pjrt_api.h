// SPDX-License-Identifier: Apache-2.0
//
// The part of XLA's PJRT C API (and of its FFI extension) that the software NeuronCore calls.
//
// The API is append-only within major version 0: a plugin of any minor version shares the order of the slots below, and
// says through `struct_size` how many it has. Plugins refuse argument structs that are *smaller* than their own, and
// accept larger ones, so every argument struct that has grown before ends in zeroed room (`reserved`) for the fields
// that later versions appended: zero is their documented default.
#pragma once

#include <cstddef>
#include <cstdint>

namespace neuroncore::pjrt {

struct Error;
struct Event;
struct Client;
struct Device;
struct Memory;
struct Executable;
struct LoadedExecutable;
struct Buffer;
struct SerializedExecutable;

struct Extension {
  size_t struct_size;
  int type;
  Extension* next;
};

constexpr int kExtensionFfi = 5;

// Values of the element types (the same numbers are the `element_type` of neuroncore_buffer_t).
enum class Type : int {
  kInvalid = 0,
  kPred = 1,
  kS8 = 2,
  kS16 = 3,
  kS32 = 4,
  kS64 = 5,
  kU8 = 6,
  kU16 = 7,
  kU32 = 8,
  kU64 = 9,
  kF16 = 10,
  kF32 = 11,
  kF64 = 12,
  kBF16 = 13,
  kC64 = 14,
  kC128 = 15,
  kF8E5M2 = 16,
  kF8E4M3FN = 17,
  kF8E4M3B11FNUZ = 18,
  kF8E5M2FNUZ = 19,
  kF8E4M3FNUZ = 20,
  kF8E4M3 = 26,
  kF8E3M4 = 27,
};

// Every argument struct starts with these two words.
struct Header {
  size_t struct_size = 0;
  Extension* extension = nullptr;
};

struct ErrorDestroy : Header {
  Error* error = nullptr;
};

struct ErrorMessage : Header {
  const Error* error = nullptr;
  const char* message = nullptr;  // out
  size_t message_size = 0;        // out
};

struct ErrorGetCode : Header {
  const Error* error = nullptr;
  int code = 0;  // out
};

constexpr int kErrorResourceExhausted = 8;
constexpr int kErrorUnimplemented = 12;

struct PluginInitialize : Header {};

struct NamedValue : Header {
  const char* name = nullptr;
  size_t name_size = 0;
  int type = 0;
  union {
    const char* string_value;
    int64_t int64_value;
    float float_value;
    bool bool_value;
  };
  size_t value_size = 0;
};

constexpr int kNamedString = 0;
constexpr int kNamedInt64 = 1;
constexpr int kNamedFloat = 3;
constexpr int kNamedBool = 4;

struct EventDestroy : Header {
  Event* event = nullptr;
};

struct EventAwait : Header {
  Event* event = nullptr;
};

struct ClientCreate : Header {
  const NamedValue* options = nullptr;
  size_t num_options = 0;
  void* key_value_store[4] = {};
  Client* client = nullptr;  // out
  uint64_t reserved[8] = {};
};

struct ClientPlatform : Header {  // PlatformName and PlatformVersion share one layout
  Client* client = nullptr;
  const char* text = nullptr;  // out
  size_t text_size = 0;        // out
};

struct ClientDevices : Header {
  Client* client = nullptr;
  Device* const* devices = nullptr;  // out
  size_t num_devices = 0;            // out
};

struct DeviceDefaultMemory : Header {
  Device* device = nullptr;
  Memory* memory = nullptr;  // out
};

struct Program : Header {
  const char* code = nullptr;
  size_t code_size = 0;
  const char* format = nullptr;
  size_t format_size = 0;
};

struct ClientCompile : Header {
  Client* client = nullptr;
  const Program* program = nullptr;
  const char* options = nullptr;
  size_t options_size = 0;
  LoadedExecutable* executable = nullptr;  // out
  uint64_t reserved[8] = {};
};

struct ClientCreateUninitializedBuffer : Header {
  Client* client = nullptr;
  const int64_t* dims = nullptr;
  size_t num_dims = 0;
  int element_type = 0;
  void* layout = nullptr;
  Device* device = nullptr;
  Memory* memory = nullptr;
  Buffer* buffer = nullptr;  // out
  uint64_t reserved[4] = {};
};

struct ClientCreateView : Header {
  Client* client = nullptr;
  void* data = nullptr;
  const int64_t* dims = nullptr;
  size_t num_dims = 0;
  int element_type = 0;
  void* layout = nullptr;
  Device* device = nullptr;
  void (*on_delete)(void* data, void* argument) = nullptr;  // null aborts the process in known plugins
  void* on_delete_argument = nullptr;
  intptr_t stream = 0;
  Buffer* buffer = nullptr;  // out
  Memory* memory = nullptr;
  uint64_t reserved[4] = {};
};

struct ExecutableDestroy : Header {
  Executable* executable = nullptr;
};

struct ExecutableNumOutputs : Header {
  Executable* executable = nullptr;
  size_t num_outputs = 0;  // out
};

struct ExecutableCostAnalysis : Header {
  Executable* executable = nullptr;
  size_t num_properties = 0;               // out
  const NamedValue* properties = nullptr;  // out
};

struct ExecutableSerialize : Header {
  const Executable* executable = nullptr;
  const char* bytes = nullptr;                       // out
  size_t bytes_size = 0;                             // out
  SerializedExecutable* serialized = nullptr;        // out
  void (*deleter)(SerializedExecutable*) = nullptr;  // out
  uint64_t reserved[4] = {};
};

struct LoadedExecutableDestroy : Header {
  LoadedExecutable* executable = nullptr;
};

struct LoadedExecutableGetExecutable : Header {
  LoadedExecutable* loaded = nullptr;
  Executable* executable = nullptr;  // out
};

struct DeserializeAndLoad : Header {
  Client* client = nullptr;
  const char* bytes = nullptr;
  size_t bytes_size = 0;
  LoadedExecutable* executable = nullptr;  // out
  const char* overridden_options = nullptr;
  size_t overridden_options_size = 0;
  uint64_t reserved[8] = {};
};

struct ExecuteOptions : Header {
  void* send_callbacks = nullptr;
  void* receive_callbacks = nullptr;
  size_t num_send_callbacks = 0;
  size_t num_receive_callbacks = 0;
  int launch_id = 0;
  const int64_t* non_donatable = nullptr;
  size_t num_non_donatable = 0;
  uint64_t reserved[16] = {};
};

struct LoadedExecutableExecute : Header {
  LoadedExecutable* executable = nullptr;
  ExecuteOptions* options = nullptr;
  Buffer* const* const* arguments = nullptr;
  size_t num_devices = 0;
  size_t num_arguments = 0;
  Buffer** const* outputs = nullptr;
  Event** complete_events = nullptr;
  Device* device = nullptr;
  uint64_t reserved[4] = {};
};

struct BufferArgument : Header {  // Destroy, Delete
  Buffer* buffer = nullptr;
};

struct BufferSize : Header {
  Buffer* buffer = nullptr;
  size_t size = 0;  // out
};

struct BufferPointer : Header {  // UnsafePointer and OpaqueDeviceMemoryDataPointer share one layout
  Buffer* buffer = nullptr;
  void* pointer = nullptr;  // out
};

struct BufferReadyEvent : Header {
  Buffer* buffer = nullptr;
  Event* event = nullptr;  // out
};

template <class Args>
using Function = Error* (*)(Args*);

// The table of functions. Slots we do not call are counted, not named.
struct Api {
  size_t struct_size;
  Extension* extension;
  struct {
    size_t struct_size;
    Extension* extension;
    int major;
    int minor;
  } version;

  void (*error_destroy)(ErrorDestroy*);
  void (*error_message)(ErrorMessage*);
  Function<ErrorGetCode> error_get_code;
  Function<PluginInitialize> plugin_initialize;
  void* slot_4;
  Function<EventDestroy> event_destroy;
  void* slot_6[2];
  Function<EventAwait> event_await;
  void* slot_9;
  Function<ClientCreate> client_create;
  void* slot_11;
  Function<ClientPlatform> client_platform_name;
  void* slot_13;
  Function<ClientPlatform> client_platform_version;
  void* slot_15;
  Function<ClientDevices> client_addressable_devices;
  void* slot_17[3];
  Function<ClientCompile> client_compile;
  void* slot_21[12];
  Function<DeviceDefaultMemory> device_default_memory;
  void* slot_34[6];
  Function<ExecutableDestroy> executable_destroy;
  void* slot_41[3];
  Function<ExecutableNumOutputs> executable_num_outputs;
  void* slot_45;
  Function<ExecutableCostAnalysis> executable_cost_analysis;
  void* slot_47[2];
  Function<ExecutableSerialize> executable_serialize;
  Function<LoadedExecutableDestroy> loaded_executable_destroy;
  Function<LoadedExecutableGetExecutable> loaded_executable_get_executable;
  void* slot_52[3];
  Function<LoadedExecutableExecute> loaded_executable_execute;
  Function<DeserializeAndLoad> deserialize_and_load;
  void* slot_57;
  Function<BufferArgument> buffer_destroy;
  void* slot_59[5];
  Function<BufferSize> buffer_on_device_size;
  void* slot_65[7];
  Function<BufferReadyEvent> buffer_ready_event;
  Function<BufferPointer> buffer_unsafe_pointer;
  void* slot_74[2];
  Function<BufferPointer> buffer_opaque_pointer;
  void* slot_77[16];
  Function<ClientCreateView> client_create_view;
  void* slot_94[18];
  Function<ClientCreateUninitializedBuffer> client_create_uninitialized_buffer;
};

constexpr size_t kTableStart = 40;
constexpr size_t SlotOffset(size_t slot) { return kTableStart + slot * sizeof(void*); }
static_assert(offsetof(Api, error_destroy) == SlotOffset(0));
static_assert(offsetof(Api, client_create) == SlotOffset(10));
static_assert(offsetof(Api, client_compile) == SlotOffset(20));
static_assert(offsetof(Api, device_default_memory) == SlotOffset(33));
static_assert(offsetof(Api, executable_destroy) == SlotOffset(40));
static_assert(offsetof(Api, executable_serialize) == SlotOffset(49));
static_assert(offsetof(Api, loaded_executable_execute) == SlotOffset(55));
static_assert(offsetof(Api, buffer_destroy) == SlotOffset(58));
static_assert(offsetof(Api, buffer_on_device_size) == SlotOffset(64));
static_assert(offsetof(Api, buffer_ready_event) == SlotOffset(72));
static_assert(offsetof(Api, buffer_opaque_pointer) == SlotOffset(76));
static_assert(offsetof(Api, client_create_view) == SlotOffset(93));
static_assert(offsetof(Api, client_create_uninitialized_buffer) == SlotOffset(112));

template <class Args>
Args Arguments() {
  Args args;
  args.struct_size = sizeof(Args);
  return args;
}

// ------------------------------------------------------------------------------------------------------- XLA FFI

struct FfiError;
struct FfiApi;

struct FfiRegisterHandler {
  size_t struct_size;
  const char* name;
  size_t name_size;
  void* handler;
  const char* platform;
  size_t platform_size;
  int traits;
};

struct FfiExtension {
  Extension base;
  void* type_register;
  void* user_data_add;
  Error* (*register_handler)(FfiRegisterHandler*);
};

struct FfiVersion {
  size_t struct_size;
  void* extension;
  int major;
  int minor;
};

struct FfiErrorCreate {
  size_t struct_size;
  void* extension;
  const char* message;
  int code;
};

struct FfiErrorDestroy {
  size_t struct_size;
  void* extension;
  FfiError* error;
};

struct FfiSchedule {
  size_t struct_size;
  void* extension;
  void* context;
  void (*task)(void*);
  void* data;
};

struct FfiApi {
  size_t struct_size;
  void* extension;
  FfiVersion version;
  void* internal;
  FfiError* (*error_create)(FfiErrorCreate*);
  void* error_get_message;
  void (*error_destroy)(FfiErrorDestroy*);
  void* handler_register;
  void* stream_get;
  void* type_id_register;
  void* execution_context_get;
  void* state_set;
  void* state_get;
  void* device_memory_allocate;
  void* device_memory_free;
  FfiError* (*thread_pool_schedule)(FfiSchedule*);
};

struct FfiMetadata {
  size_t struct_size;
  FfiVersion version;
  uint32_t traits;
};

struct FfiMetadataExtension {
  Extension base;  // type 1
  FfiMetadata* metadata;
};

constexpr int kFfiMetadataExtension = 1;
constexpr int kFfiStageExecute = 3;
constexpr int kFfiInvalidArgument = 3;
constexpr int kFfiOutOfRange = 11;
constexpr int kFfiInternal = 13;

struct FfiBuffer {
  size_t struct_size;
  void* extension;
  int element_type;  // numbered as in xla_data.proto, not as pjrt::Type
  void* data;
  int64_t rank;
  int64_t* dims;
};

struct FfiBuffers {
  size_t struct_size;
  void* extension;
  int64_t size;
  int* kinds;
  void** buffers;
};

struct FfiSpan {
  const char* data;
  size_t size;
};

struct FfiAttributes {
  size_t struct_size;
  void* extension;
  int64_t size;
  int* kinds;
  FfiSpan** names;
  void** values;
};

constexpr int kFfiAttributeDictionary = 2;
constexpr int kFfiAttributeString = 4;

struct FfiCallFrame {
  size_t struct_size;
  Extension* extension;
  const FfiApi* api;
  void* context;
  int stage;
  FfiBuffers arguments;
  FfiBuffers results;
  FfiAttributes attributes;
};

}  // namespace neuroncore::pjrt
