// SPDX-License-Identifier: Apache-2.0
//
// neuroncore_compile: StableHLO text -> NEFF.

#include <neuroncore/neuroncore.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#ifdef __GLIBC__  // defined by the headers above
#include <malloc.h>
#endif

#include "errors.h"
#include "json.h"
#include "kernel_program.h"
#include "kernels.h"
#include "model.h"
#include "neff.h"
#include "plugin.h"
#include "program_signature.h"
#include "version.h"

namespace neuroncore {
namespace {

void WriteTensor(JsonWriter* json, const std::string& name, const TensorType& type) {
  json->Member("name", name);
  json->Member("dtype", type.element_name);
  json->BeginArray("shape");
  for (int64_t extent : type.dims) json->Element(extent);
  json->EndArray();
  json->Member("bytes", static_cast<int64_t>(type.bytes));
}

std::string Metadata(const ProgramSignature& signature, const char* given, int optimize_level, double milliseconds,
                     double flops, double bytes_accessed, const std::string& fingerprint) {
  JsonWriter json;
  json.BeginObject();
  if (given != nullptr) json.MembersOf(given);
  json.BeginArray("inputs");
  for (size_t i = 0; i < signature.num_inputs; ++i) {
    json.BeginObject();
    WriteTensor(&json, "input" + std::to_string(i), signature.parameters[i].type);
    if (signature.parameters[i].aliased_output >= 0) {
      json.Member("aliases", "output" + std::to_string(signature.parameters[i].aliased_output));
    }
    json.EndObject();
  }
  json.EndArray();
  json.BeginArray("outputs");
  for (size_t i = 0; i < signature.results.size(); ++i) {
    json.BeginObject();
    WriteTensor(&json, "output" + std::to_string(i), signature.results[i]);
    json.EndObject();
  }
  json.EndArray();
  json.BeginArray("scratch");
  for (const Parameter& parameter : signature.parameters) {
    if (parameter.scratch) json.Element("output" + std::to_string(parameter.aliased_output));
  }
  json.EndArray();
  json.Member("module", signature.module_name);
  json.Member("optimize_level", static_cast<int64_t>(optimize_level));
  json.Member("compile_ms", milliseconds);
  if (flops >= 0) json.Member("flops", flops);
  if (bytes_accessed >= 0) json.Member("bytes_accessed", bytes_accessed);
  json.Member("fingerprint", fingerprint);
  json.EndObject();
  return json.text();
}

// XLA's compiler leaves a hundred megabytes and more of free memory behind a large program, in pieces that the C
// library keeps: they would add to whatever runs next.
void ReturnFreeMemory(size_t program_bytes) {
#ifdef __GLIBC__
  constexpr size_t kLargeProgram = 1 << 16;
  if (program_bytes >= kLargeProgram) malloc_trim(0);
#endif
}

NRT_STATUS Compile(std::string_view text, const char* metadata, int optimize_level, std::string* neff) {
  if (optimize_level != 0 && optimize_level != 1) {
    return Fail(NRT_INVALID, "optimize_level is 0 or 1, not %d", optimize_level);
  }
  if (metadata != nullptr && !IsJsonObject(metadata)) {
    return Fail(NRT_INVALID, "metadata_json is not a JSON object");
  }
  Plugin* plugin = Plugin::WithClient();
  if (plugin == nullptr) return NRT_FAILURE;
  ProgramSignature signature;
  if (!ParseSignature(text, &signature)) return NRT_INVALID;
  NeffContent content;
  content.program = AddScratchParameters(text, signature);
  signature = {};
  if (!ParseSignature(content.program, &signature)) return NRT_INVALID;

  content.name = signature.module_name;
  content.fingerprint = plugin->fingerprint();
  const std::optional<KernelProgram> kernel = ParseKernelProgram(content.program, signature);
  if (kernel && FindKernel(kernel->name) >= 0) {  // is never run by XLA
    content.metadata = Metadata(signature, metadata, optimize_level, 0, -1, -1, content.fingerprint);
    *neff = WriteNeff(content);
    return NRT_SUCCESS;
  }

  auto start = std::chrono::steady_clock::now();
  pjrt::LoadedExecutable* executable = CompileProgram(*plugin, content.program, signature, optimize_level);
  if (executable == nullptr) return NRT_FAILURE;
  std::chrono::duration<double, std::milli> elapsed = std::chrono::steady_clock::now() - start;
  bool serialized = !plugin->CanSerialize() || plugin->Serialize(executable, &content.executable);
  double flops = plugin->Cost(executable, "flops");
  double bytes_accessed = plugin->Cost(executable, "bytes accessed");
  plugin->Destroy(executable);
  ReturnFreeMemory(content.program.size());
  if (!serialized) return NRT_FAILURE;

  content.metadata =
      Metadata(signature, metadata, optimize_level, elapsed.count(), flops, bytes_accessed, content.fingerprint);
  *neff = WriteNeff(content);
  return NRT_SUCCESS;
}

}  // namespace
}  // namespace neuroncore

using namespace neuroncore;

NEURONCORE_EXPORT NRT_STATUS neuroncore_compile(const char* mlir, size_t mlir_size, const char* metadata_json,
                                                int optimize_level, void** neff, size_t* neff_size, char** error) {
  if (error != nullptr) *error = nullptr;
  NRT_STATUS status = Guarded("neuroncore_compile", [&]() -> NRT_STATUS {
    if (mlir == nullptr || neff == nullptr || neff_size == nullptr) {
      return Fail(NRT_INVALID, "neuroncore_compile: null argument");
    }
    std::string bytes;
    if (NRT_STATUS failed = Compile({mlir, mlir_size}, metadata_json, optimize_level, &bytes)) return failed;
    *neff = malloc(bytes.size());
    if (*neff == nullptr) throw std::bad_alloc();
    memcpy(*neff, bytes.data(), bytes.size());
    *neff_size = bytes.size();
    return NRT_SUCCESS;
  });
  if (status != NRT_SUCCESS && error != nullptr) *error = strdup(LastError());
  return status;
}

NEURONCORE_EXPORT void neuroncore_free(void* memory) { free(memory); }
