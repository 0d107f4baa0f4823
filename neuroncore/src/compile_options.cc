// SPDX-License-Identifier: Apache-2.0
#include "compile_options.h"

#include <cstdint>
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

void AppendVarint(std::string* bytes, uint64_t value) {
  for (; value >= 0x80; value >>= 7) bytes->push_back(static_cast<char>(value | 0x80));
  bytes->push_back(static_cast<char>(value));
}

void AppendNumber(std::string* bytes, int field, uint64_t value) {
  AppendVarint(bytes, static_cast<uint64_t>(field) << 3);
  AppendVarint(bytes, value);
}

void AppendBytes(std::string* bytes, int field, std::string_view value) {
  AppendVarint(bytes, static_cast<uint64_t>(field) << 3 | 2);
  AppendVarint(bytes, value.size());
  bytes->append(value);
}

// Sets one of XLA's debug options by name.
void AppendOverride(std::string* bytes, std::string_view name, bool value) {
  std::string setting;
  AppendNumber(&setting, kBoolField, value);
  std::string entry;
  AppendBytes(&entry, kMapKey, name);
  AppendBytes(&entry, kMapValue, setting);
  AppendBytes(bytes, kOptionOverrides, entry);
}

}  // namespace

std::string CompileOptions(CompileFlavor flavor) {
  std::string build;
  AppendNumber(&build, kNumReplicas, 1);
  AppendNumber(&build, kNumPartitions, 1);
  std::string options;
  AppendBytes(&options, kExecutableBuildOptions, build);
  // XLA's faster minimum and maximum lose NaN: maximum(1, NaN) would be 1.
  AppendOverride(&options, "xla_cpu_enable_fast_min_max", false);
  if (flavor == CompileFlavor::kElementwise) AppendOverride(&options, "xla_cpu_use_fusion_emitters", false);
  return options;
}

CompileFlavor FlavorOf(std::string_view program, int optimize_level) {
  if (optimize_level != 0) return CompileFlavor::kDefault;
  for (std::string_view operation : {"stablehlo.transpose", "stablehlo.reduce", "stablehlo.gather", "stablehlo.scatter",
                                     "stablehlo.dot", "stablehlo.convolution", "stablehlo.concatenate", "stablehlo.pad",
                                     "stablehlo.while", "stablehlo.sort", "stablehlo.custom_call"}) {
    if (program.find(operation) != std::string_view::npos) return CompileFlavor::kDefault;
  }
  return CompileFlavor::kElementwise;
}

}  // namespace neuroncore
