// SPDX-License-Identifier: Apache-2.0
#include "compile_options.h"

#include <cstdint>
#include <string_view>

#include "program_work.h"

namespace neuroncore {
namespace {

// Field numbers of CompileOptionsProto, ExecutableBuildOptionsProto and OptionOverrideProto.
constexpr int kExecutableBuildOptions = 3;
constexpr int kNumReplicas = 4;
constexpr int kNumPartitions = 5;
constexpr int kOptionOverrides = 7;
constexpr int kMapKey = 1;
constexpr int kMapValue = 2;
constexpr int kStringField = 1;
constexpr int kBoolField = 2;
constexpr int kIntegerField = 3;

constexpr std::string_view kFusionEmitters = "xla_cpu_use_fusion_emitters";
constexpr std::string_view kDisabledPasses = "xla_disable_hlo_passes";
constexpr std::string_view kVectorWidth = "xla_cpu_prefer_vector_width";

// Below this, a second thread has nothing to win: some thirty microseconds of one.
constexpr double kSingleThreadWork = 1 << 20;

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

// Sets one of XLA's debug options by name. setting: a field of OptionOverrideProto.
void AppendOverride(std::string* bytes, std::string_view name, std::string_view setting) {
  std::string entry;
  AppendBytes(&entry, kMapKey, name);
  AppendBytes(&entry, kMapValue, setting);
  AppendBytes(bytes, kOptionOverrides, entry);
}

void AppendOverride(std::string* bytes, std::string_view name, bool value) {
  std::string setting;
  AppendNumber(&setting, kBoolField, value);
  AppendOverride(bytes, name, std::string_view(setting));
}

bool IsElementwise(std::string_view program) {
  for (std::string_view operation : {"stablehlo.transpose", "stablehlo.reduce", "stablehlo.gather", "stablehlo.scatter",
                                     "stablehlo.dot", "stablehlo.convolution", "stablehlo.concatenate", "stablehlo.pad",
                                     "stablehlo.while", "stablehlo.sort", "stablehlo.custom_call"}) {
    if (program.find(operation) != std::string_view::npos) return false;
  }
  return true;
}

}  // namespace

bool CompileChoices::TakeBack(const std::string& error) {
  if (error.find("No such compile option") == std::string::npos) return false;
  const auto take_back = [&](bool* choice, std::string_view name) {
    if (!*choice || error.find(name) == std::string::npos) return false;
    *choice = false;
    return true;
  };
  return take_back(&older_emitters, kFusionEmitters) || take_back(&single_thread, kDisabledPasses) ||
         take_back(&wide_vectors, kVectorWidth);
}

std::string CompileOptions(const CompileChoices& choices) {
  std::string build;
  AppendNumber(&build, kNumReplicas, 1);
  AppendNumber(&build, kNumPartitions, 1);
  std::string options;
  AppendBytes(&options, kExecutableBuildOptions, build);
  // XLA's faster minimum and maximum lose NaN: maximum(1, NaN) would be 1.
  AppendOverride(&options, "xla_cpu_enable_fast_min_max", false);
  if (choices.older_emitters) AppendOverride(&options, kFusionEmitters, false);
  if (choices.single_thread) {
    std::string passes;
    AppendBytes(&passes, kStringField, "cpu-parallel-task-assigner");
    AppendOverride(&options, kDisabledPasses, std::string_view(passes));
  }
  if (choices.wide_vectors) {
    std::string width;
    AppendNumber(&width, kIntegerField, 512);
    AppendOverride(&options, kVectorWidth, std::string_view(width));
  }
  return options;
}

CompileChoices ChoicesFor(std::string_view program, const ProgramSignature& signature, int optimize_level) {
  CompileChoices choices;
  choices.older_emitters = optimize_level == 0 && IsElementwise(program);
  choices.single_thread = choices.wide_vectors = ProgramWork(program, signature) < kSingleThreadWork;
  return choices;
}

}  // namespace neuroncore
