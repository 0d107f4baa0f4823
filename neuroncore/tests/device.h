// SPDX-License-Identifier: Apache-2.0
//
// The NRT ABI for tests: tensors, programs and launches that clean up after themselves.
#pragma once

#include <neuroncore/neuroncore.h>
#include <nrt/nrt.h>

#include <cstring>
#include <string>
#include <vector>

#include "check.h"
#include "programs.h"

// A call that must succeed.
#define OK(call)                                                                                                  \
  do {                                                                                                            \
    NRT_STATUS ok_status = (call);                                                                                \
    if (ok_status != NRT_SUCCESS)                                                                                 \
      check::Fail(__FILE__, __LINE__,                                                                             \
                  std::string(#call) + ": " + nrt_get_status_as_str(ok_status) + ": " + neuroncore_last_error()); \
  } while (false)
// A call that must fail with this status, and say why.
#define FAILS(call, expected)                                                                               \
  do {                                                                                                      \
    NRT_STATUS fails_status = (call);                                                                       \
    if (fails_status != (expected))                                                                         \
      check::Fail(__FILE__, __LINE__, std::string(#call) + ": got " + nrt_get_status_as_str(fails_status)); \
    if (*neuroncore_last_error() == '\0') check::Fail(__FILE__, __LINE__, "no error text");                 \
  } while (false)

struct Tensor {
  nrt_tensor_t* handle = nullptr;

  explicit Tensor(size_t size, int core = 0) {
    OK(nrt_tensor_allocate(NRT_TENSOR_PLACEMENT_DEVICE, core, size, "test", &handle));
  }
  Tensor(const Tensor& parent, size_t offset, size_t size) {
    OK(nrt_tensor_allocate_slice(parent.handle, offset, size, "slice", &handle));
  }
  template <class T>
  explicit Tensor(const std::vector<T>& values) : Tensor(values.size() * sizeof(T)) {
    Write(values);
  }
  Tensor(const Tensor&) = delete;
  Tensor(Tensor&& other) : handle(other.handle) { other.handle = nullptr; }
  ~Tensor() { nrt_tensor_free(&handle); }

  template <class T>
  void Write(const std::vector<T>& values, size_t offset = 0) {
    OK(nrt_tensor_write(handle, values.data(), offset, values.size() * sizeof(T)));
  }

  template <class T>
  std::vector<T> Read() const {
    std::vector<T> values(nrt_tensor_get_size(handle) / sizeof(T));
    OK(nrt_tensor_read(handle, values.data(), 0, values.size() * sizeof(T)));
    return values;
  }
  std::vector<float> Floats() const { return Read<float>(); }

  uint64_t Address() const {
    nrt_tensor_device_allocation_info_t info;
    OK(nrt_tensor_get_device_allocation_info(handle, &info));
    return info.physical_address;
  }
};

inline std::string Compile(const std::string& program, int level = 0, const char* metadata = nullptr) {
  void* bytes = nullptr;
  size_t size = 0;
  char* error = nullptr;
  NRT_STATUS status = neuroncore_compile(program.data(), program.size(), metadata, level, &bytes, &size, &error);
  if (status != NRT_SUCCESS) {
    std::string text = error != nullptr ? error : "no text";
    neuroncore_free(error);
    check::Fail(__FILE__, __LINE__, "compile: " + text + "\n" + program);
  }
  std::string neff(static_cast<char*>(bytes), size);
  neuroncore_free(bytes);
  return neff;
}

struct TensorSet {
  nrt_tensor_set_t* handle = nullptr;

  TensorSet(const std::string& prefix, const std::vector<const Tensor*>& tensors) {
    OK(nrt_allocate_tensor_set(&handle));
    for (size_t i = 0; i < tensors.size(); ++i) Add(prefix + std::to_string(i), *tensors[i]);
  }
  TensorSet(const TensorSet&) = delete;
  ~TensorSet() { nrt_destroy_tensor_set(&handle); }
  void Add(const std::string& name, const Tensor& tensor) {
    OK(nrt_add_tensor_to_tensor_set(handle, name.c_str(), tensor.handle));
  }
};

struct Model {
  nrt_model_t* handle = nullptr;

  explicit Model(const std::string& program, int core = 0, int level = 0) {
    std::string neff = Compile(program, level);
    OK(nrt_load(neff.data(), neff.size(), core, 1, &handle));
  }
  Model(const Model&) = delete;
  ~Model() {
    if (handle != nullptr) nrt_unload(handle);
  }

  NRT_STATUS TryRun(const std::vector<const Tensor*>& inputs, const std::vector<const Tensor*>& outputs) {
    TensorSet in("input", inputs), out("output", outputs);
    return nrt_execute(handle, in.handle, out.handle);
  }
  void Run(const std::vector<const Tensor*>& inputs, const std::vector<const Tensor*>& outputs) {
    OK(TryRun(inputs, outputs));
  }
};

inline neuroncore_statistics_t Statistics(int core = 0) {
  neuroncore_statistics_t statistics;
  OK(neuroncore_get_statistics(core, &statistics, sizeof(statistics)));
  return statistics;
}

inline uint64_t BytesUsed(int core = 0) {
  nrt_vnc_memory_stats_t stats;
  size_t written;
  OK(nrt_get_vnc_memory_stats(static_cast<uint32_t>(core), &stats, sizeof(stats), &written));
  CHECK_EQ(written, sizeof(stats));
  return stats.bytes_used;
}

inline void Init() { OK(nrt_init(NRT_FRAMEWORK_TYPE_NO_FW, "test", "test")); }

// Every test runs between nrt_init and nrt_close, and leaves no tensor behind.
inline int RunOnDevice() {
  return check::RunAll(Init, [] {
    CHECK_EQ(Statistics().tensors, 0u);
    nrt_close();
  });
}
