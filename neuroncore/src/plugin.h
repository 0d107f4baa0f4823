// SPDX-License-Identifier: Apache-2.0
//
// The XLA CPU PJRT plugin of the process: found through the environment, loaded once, never unloaded. All cores share
// its one client.
#pragma once

#include <nrt/nrt_status.h>

#include <atomic>
#include <string>

#include "compile_options.h"
#include "pjrt_api.h"

namespace neuroncore {

class Plugin {
 public:
  // The loaded plugin, or null after Fail(). The first failure is final only for the environment it was seen with:
  // a changed TORCH_NEURONX_PJRT_PLUGIN is tried again.
  static Plugin* Get();
  // The same, with the client created.
  static Plugin* WithClient();

  // Whether this process was forked from one that had a client: XLA's threads stayed behind, so nothing works here.
  static bool forked() { return forked_.load(std::memory_order_relaxed); }
  static NRT_STATUS FailForked(const char* function);

  const pjrt::Api& api() const { return api_; }
  const std::string& path() const { return path_; }
  const std::string& fingerprint() const { return fingerprint_; }
  const std::string& description() const { return description_; }

  // Destroys the error and returns its text; "" for null. `code` receives the PJRT error code.
  std::string TakeError(pjrt::Error* error, int* code = nullptr) const;

  // All of the following return null (or false) after Fail().
  pjrt::LoadedExecutable* Compile(const std::string& program, const CompileChoices& wanted) const;
  bool CanSerialize() const;
  bool Serialize(pjrt::LoadedExecutable* executable, std::string* bytes) const;
  pjrt::LoadedExecutable* Deserialize(const char* bytes, size_t size) const;
  void Destroy(pjrt::LoadedExecutable* executable) const;
  // A property of the cost analysis ("flops", "bytes accessed"), negative if unknown.
  double Cost(pjrt::LoadedExecutable* executable, const char* property) const;

  // Whether PJRT itself can allocate memory that we fill; otherwise buffers are views of host blocks.
  bool CanAllocate() const;
  pjrt::Buffer* Allocate(size_t bytes) const;
  pjrt::Buffer* View(void* data, size_t bytes) const;
  void Destroy(pjrt::Buffer* buffer) const;
  void* Pointer(pjrt::Buffer* buffer) const;

  // Registers an XLA FFI handler for the host platform.
  bool RegisterHandler(const std::string& name, pjrt::FfiError* (*handler)(pjrt::FfiCallFrame*)) const;

 private:
  bool Load(const std::string& path);
  bool CreateClient();
  pjrt::LoadedExecutable* CompileWith(const std::string& program, const std::string& options, std::string* error) const;

  static std::atomic<bool> forked_;

  pjrt::Api api_ = {};
  const pjrt::Extension* extensions_ = nullptr;
  pjrt::Client* client_ = nullptr;
  pjrt::Device* device_ = nullptr;
  pjrt::Memory* memory_ = nullptr;
  // Cleared by the first compile that finds the plugin without the option.
  mutable std::atomic<bool> has_older_emitters_{true};
  mutable std::atomic<bool> has_pass_switches_{true};
  mutable std::atomic<bool> has_vector_width_{true};
  std::string path_;
  std::string fingerprint_;
  std::string description_;
};

}  // namespace neuroncore
