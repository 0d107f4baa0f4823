// SPDX-License-Identifier: Apache-2.0
#include <nrt/compiler.h>

#include <map>
#include <mutex>

#include <c10/util/Exception.h>

#include <nrt/runtime.h>

namespace neuron {
namespace {

struct Kernel {
  neuroncore_kernel_fn function = nullptr;
  void* context = nullptr;
  bool registered = false;
};

struct Kernels {
  std::mutex mutex;
  std::map<std::string, Kernel> by_name;
};

Kernels& kernels() {
  static auto* leaked = new Kernels;
  return *leaked;
}

// The table of the software core, with all kernels registered.
const Runtime& software_core() {
  const Runtime& nrt = loaded_runtime();
  TORCH_CHECK(nrt.neuroncore_compile != nullptr,
              "Only the software NeuronCore compiles in this process; this one uses libnrt.");
  provide_kernels(nrt);
  return nrt;
}

}  // namespace

void provide_kernels(const Runtime& nrt) {
  if (nrt.neuroncore_register_kernel == nullptr) return;
  std::lock_guard<std::mutex> lock(kernels().mutex);
  for (auto& [name, kernel] : kernels().by_name) {
    if (kernel.registered) continue;
    check_status(nrt.neuroncore_register_kernel(name.c_str(), kernel.function, kernel.context),
                 "registering a host kernel");
    kernel.registered = true;
  }
}

void register_kernel(const std::string& name, neuroncore_kernel_fn function, void* context) {
  std::lock_guard<std::mutex> lock(kernels().mutex);
  kernels().by_name[name] = {function, context, false};
}

std::vector<std::string> kernel_names() {
  std::vector<std::string> names;
  std::lock_guard<std::mutex> lock(kernels().mutex);
  for (const auto& entry : kernels().by_name) names.push_back(entry.first);
  return names;
}

std::string compiler_fingerprint() { return software_core().neuroncore_fingerprint(); }

std::string compile(const std::string& mlir, const std::string& metadata, int optimize_level) {
  const Runtime& nrt = software_core();
  void* neff = nullptr;
  size_t size = 0;
  char* error = nullptr;
  const NRT_STATUS status = nrt.neuroncore_compile(
      mlir.data(), mlir.size(), metadata.empty() ? nullptr : metadata.c_str(), optimize_level, &neff, &size, &error);
  if (status != NRT_SUCCESS) {
    std::string message = error != nullptr ? error : describe_status(status);
    nrt.neuroncore_free(error);
    TORCH_CHECK(false, message);
  }
  std::string bytes(static_cast<const char*>(neff), size);
  nrt.neuroncore_free(neff);
  return bytes;
}

}  // namespace neuron
