// SPDX-License-Identifier: Apache-2.0
#include <nrt/environment.h>

#include <sched.h>

#include <algorithm>
#include <cstdlib>
#include <thread>

#include <c10/util/Exception.h>

namespace neuron::environment {
namespace {

std::optional<std::string> text(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr || *value == '\0') return std::nullopt;
  return std::string(value);
}

int number(const char* name, int otherwise) {
  const auto value = text(name);
  if (!value) return otherwise;
  char* end = nullptr;
  const long parsed = std::strtol(value->c_str(), &end, 10);
  TORCH_CHECK(*end == '\0', name, " must be a whole number, but is '", *value, "'.");
  return static_cast<int>(parsed);
}

bool flag(const char* name) {
  const auto value = text(name);
  return value && *value != "0" && *value != "false" && *value != "off";
}

// That this process may run on.
int processors() {
  cpu_set_t allowed;
  return sched_getaffinity(0, sizeof(allowed), &allowed) == 0 ? CPU_COUNT(&allowed)
                                                              : static_cast<int>(std::thread::hardware_concurrency());
}

}  // namespace

RuntimeChoice runtime() {
  const std::string value = text("TORCH_NEURONX_RUNTIME").value_or("auto");
  if (value == "auto") return RuntimeChoice::Auto;
  if (value == "nrt") return RuntimeChoice::Nrt;
  if (value == "software") return RuntimeChoice::Software;
  TORCH_CHECK(false, "TORCH_NEURONX_RUNTIME must be auto, nrt or software, but is '", value, "'.");
}

std::optional<std::string> pjrt_plugin() { return text("TORCH_NEURONX_PJRT_PLUGIN"); }
void set_pjrt_plugin(const std::string& path) { setenv("TORCH_NEURONX_PJRT_PLUGIN", path.c_str(), 1); }
bool visible_cores_given() { return text("NEURON_RT_VISIBLE_CORES").has_value(); }
bool cores_given() { return visible_cores_given() || text("NEURON_RT_NUM_CORES").has_value(); }
bool threads_given() { return text("OMP_NUM_THREADS").has_value(); }
void set_visible_cores(const std::string& cores) { setenv("NEURON_RT_VISIBLE_CORES", cores.c_str(), 1); }
int local_rank() { return number("LOCAL_RANK", -1); }
int launcher_node() { return number("GROUP_RANK", 0); }
int local_world_size() { return number("LOCAL_WORLD_SIZE", 1); }

int share_processors() {
  if (local_world_size() <= 1) return 0;
  const int share = std::max(1, processors() / local_world_size());
  setenv("NPROC", std::to_string(share).c_str(), /*overwrite=*/0);
  return share;
}

bool has_spare_processor() {
  static const bool value = processors() >= 2 * std::max(1, local_world_size());
  return value;
}

bool launch_blocking() {
  static const bool value = flag("NEURON_LAUNCH_BLOCKING");
  return value;
}

FallbackChoice fallback() {
  static const FallbackChoice choice = [] {
    const std::string value = text("TORCH_NEURONX_FALLBACK").value_or("warn");
    if (value == "warn") return FallbackChoice::Warn;
    if (value == "error") return FallbackChoice::Error;
    if (value == "silent") return FallbackChoice::Silent;
    TORCH_CHECK(false, "TORCH_NEURONX_FALLBACK must be warn, error or silent, but is '", value, "'.");
  }();
  return choice;
}

}  // namespace neuron::environment
