// SPDX-License-Identifier: Apache-2.0
#include "compile_options.h"

#include <cstdint>
#include <cstdlib>
#include <string_view>

namespace neuroncore {
namespace {

// Field numbers of CompileOptionsProto, ExecutableBuildOptionsProto and OptionOverrideProto.
constexpr int kExecutableBuildOptions = 3;
constexpr int kNumReplicas = 4;
constexpr int kNumPartitions = 5;
constexpr int kOptionOverrides = 7;
constexpr int kMapKey = 1;
constexpr int kMapValue = 2;
constexpr int kBoolField = 2;
constexpr int kIntField = 3;

void AppendVarint(std::string *bytes, uint64_t value) {
  for (; value >= 0x80; value >>= 7) bytes->push_back(static_cast<char>(value | 0x80));
  bytes->push_back(static_cast<char>(value));
}

void AppendNumber(std::string *bytes, int field, uint64_t value) {
  AppendVarint(bytes, static_cast<uint64_t>(field) << 3);
  AppendVarint(bytes, value);
}

void AppendBytes(std::string *bytes, int field, std::string_view value) {
  AppendVarint(bytes, static_cast<uint64_t>(field) << 3 | 2);
  AppendVarint(bytes, value.size());
  bytes->append(value);
}

// Sets one of XLA's debug options by name.
void AppendOverride(std::string *bytes, std::string_view name, int kind, uint64_t value) {
  std::string setting;
  AppendNumber(&setting, kind, value);
  std::string entry;
  AppendBytes(&entry, kMapKey, name);
  AppendBytes(&entry, kMapValue, setting);
  AppendBytes(bytes, kOptionOverrides, entry);
}

}  // namespace

std::string CompileOptions(int optimize_level) {
  std::string build;
  AppendNumber(&build, kNumReplicas, 1);
  AppendNumber(&build, kNumPartitions, 1);
  std::string options;
  AppendBytes(&options, kExecutableBuildOptions, build);
  if (const char *experiment = getenv("NEURONCORE_EXPERIMENT")) {
    std::string_view e = experiment;
    if (e.find('f') != e.npos) AppendOverride(&options, "xla_cpu_use_fusion_emitters", kBoolField, 0);
    if (e.find('0') != e.npos) AppendOverride(&options, "xla_backend_optimization_level", kIntField, 0);
    if (e.find('1') != e.npos) AppendOverride(&options, "xla_backend_optimization_level", kIntField, 1);
    if (e.find('2') != e.npos) AppendOverride(&options, "xla_backend_optimization_level", kIntField, 2);
    if (e.find('e') != e.npos) AppendOverride(&options, "xla_llvm_disable_expensive_passes", kBoolField, 1);
    if (e.find('s') != e.npos) AppendOverride(&options, "xla_cpu_parallel_codegen_split_count", kIntField, 1);
    if (e.find('x') != e.npos) AppendOverride(&options, "xla_cpu_use_xnnpack", kBoolField, 0);
  }
  (void)optimize_level;
  return options;
}

}  // namespace neuroncore
