// SPDX-License-Identifier: Apache-2.0
//
// Figures, not a test: cost of a launch over raw PJRT, of a large elementwise operator, and of compiling.

#include <dlfcn.h>
#include <neuroncore/neuroncore.h>
#include <nrt/nrt.h>
#include <time.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "../src/pjrt_api.h"
#include "programs.h"

namespace {

using namespace neuroncore;

double Seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

void Check(NRT_STATUS status) {
  if (status == NRT_SUCCESS) return;
  fprintf(stderr, "%s: %s\n", nrt_get_status_as_str(status), neuroncore_last_error());
  exit(1);
}

// Processor time of the whole process: says more than the clock on a machine that others use.
double ProcessSeconds() {
  timespec now;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

struct Times {
  double wall, processor;
};

// Median over `rounds` of the mean time of `repeats` calls.
Times TimeBoth(int rounds, int repeats, const std::function<void()>& call) {
  std::vector<double> wall, processor;
  for (int round = 0; round < rounds; ++round) {
    double start = Seconds(), used = ProcessSeconds();
    for (int i = 0; i < repeats; ++i) call();
    wall.push_back((Seconds() - start) / repeats);
    processor.push_back((ProcessSeconds() - used) / repeats);
  }
  std::sort(wall.begin(), wall.end());
  std::sort(processor.begin(), processor.end());
  return {wall[wall.size() / 2], processor[processor.size() / 2]};
}

double Time(int rounds, int repeats, const std::function<void()>& call) { return TimeBoth(rounds, repeats, call).wall; }

struct Neff {
  void* bytes = nullptr;
  size_t size = 0;
};

Neff Compile(const std::string& program, int level) {
  Neff neff;
  char* error = nullptr;
  NRT_STATUS status =
      neuroncore_compile(program.data(), program.size(), nullptr, level, &neff.bytes, &neff.size, &error);
  if (status != NRT_SUCCESS) fprintf(stderr, "%s\n", error);
  Check(status);
  return neff;
}

struct Launch {
  nrt_model_t* model = nullptr;
  nrt_tensor_set_t* inputs = nullptr;
  nrt_tensor_set_t* outputs = nullptr;
  std::vector<nrt_tensor_t*> tensors;

  Launch(const std::string& program, int level) {
    Neff neff = Compile(program, level);
    Check(nrt_load(neff.bytes, neff.size, 0, 1, &model));
    neuroncore_free(neff.bytes);
    Check(nrt_allocate_tensor_set(&inputs));
    Check(nrt_allocate_tensor_set(&outputs));
    nrt_tensor_info_array_t* info;
    Check(nrt_get_model_tensor_info(model, &info));
    for (uint64_t i = 0; i < info->tensor_count; ++i) {
      const nrt_tensor_info_t& entry = info->tensor_array[i];
      nrt_tensor_t* tensor;
      Check(nrt_tensor_allocate(NRT_TENSOR_PLACEMENT_DEVICE, 0, entry.size, nullptr, &tensor));
      if (entry.usage == NRT_TENSOR_USAGE_INPUT) {
        std::vector<float> values(entry.size / 4, 0.5f);
        Check(nrt_tensor_write(tensor, values.data(), 0, entry.size));
      }
      Check(nrt_add_tensor_to_tensor_set(entry.usage == NRT_TENSOR_USAGE_INPUT ? inputs : outputs, entry.name, tensor));
      tensors.push_back(tensor);
    }
    nrt_free_model_tensor_info(info);
  }

  ~Launch() {
    for (nrt_tensor_t* tensor : tensors) nrt_tensor_free(&tensor);
    nrt_destroy_tensor_set(&inputs);
    nrt_destroy_tensor_set(&outputs);
    nrt_unload(model);
  }

  void Run() { Check(nrt_execute(model, inputs, outputs)); }
};

// The same add, through nothing but PJRT: 20 lines that stand for the floor.
Times RawAdd(const std::string& program, size_t bytes) {
  void* library = dlopen(getenv("TORCH_NEURONX_PJRT_PLUGIN"), RTLD_NOW);
  auto* api = reinterpret_cast<const pjrt::Api* (*)()>(dlsym(library, "GetPjrtApi"))();
  pjrt::NamedValue options[2] = {};
  for (auto& option : options) option.struct_size = sizeof(option), option.value_size = 1;
  options[0].name = "cpu_device_count", options[0].name_size = 16, options[0].type = pjrt::kNamedInt64;
  options[0].int64_value = 1;
  options[1].name = "asynchronous", options[1].name_size = 12, options[1].type = pjrt::kNamedBool;
  options[1].bool_value = false;
  auto create = pjrt::Arguments<pjrt::ClientCreate>();
  create.options = options, create.num_options = 2;
  if (api->client_create(&create) != nullptr) return {};
  auto devices = pjrt::Arguments<pjrt::ClientDevices>();
  devices.client = create.client;
  api->client_addressable_devices(&devices);
  auto memory = pjrt::Arguments<pjrt::DeviceDefaultMemory>();
  memory.device = devices.devices[0];
  api->device_default_memory(&memory);
  auto text = pjrt::Arguments<pjrt::Program>();
  text.code = program.data(), text.code_size = program.size(), text.format = "mlir", text.format_size = 4;
  auto compile = pjrt::Arguments<pjrt::ClientCompile>();
  compile.client = create.client, compile.program = &text, compile.options = "\x1a\x04\x20\x01\x28\x01",
  compile.options_size = 6;
  api->client_compile(&compile);
  std::vector<pjrt::Buffer*> operands;
  int64_t dims[] = {static_cast<int64_t>(bytes)};
  for (int i = 0; i < 2; ++i) {
    auto allocate = pjrt::Arguments<pjrt::ClientCreateUninitializedBuffer>();
    allocate.client = create.client, allocate.dims = dims, allocate.num_dims = 1;
    allocate.element_type = static_cast<int>(pjrt::Type::kU8), allocate.memory = memory.memory;
    api->client_create_uninitialized_buffer(&allocate);
    auto pointer = pjrt::Arguments<pjrt::BufferPointer>();
    pointer.buffer = allocate.buffer;
    api->buffer_unsafe_pointer(&pointer);
    memset(pointer.pointer, 0, bytes);
    operands.push_back(allocate.buffer);
  }
  auto run = [&] {
    auto execute_options = pjrt::Arguments<pjrt::ExecuteOptions>();
    auto execute = pjrt::Arguments<pjrt::LoadedExecutableExecute>();
    pjrt::Buffer* const* arguments = operands.data();
    pjrt::Buffer* result;
    pjrt::Buffer** results = &result;
    pjrt::Event* event;
    execute.executable = compile.executable, execute.options = &execute_options, execute.arguments = &arguments;
    execute.num_devices = 1, execute.num_arguments = 2, execute.outputs = &results, execute.complete_events = &event;
    api->loaded_executable_execute(&execute);
    auto await = pjrt::Arguments<pjrt::EventAwait>();
    await.event = event;
    api->event_await(&await);
    auto destroy_event = pjrt::Arguments<pjrt::EventDestroy>();
    destroy_event.event = event;
    api->event_destroy(&destroy_event);
    auto destroy = pjrt::Arguments<pjrt::BufferArgument>();
    destroy.buffer = result;
    api->buffer_destroy(&destroy);
  };
  return TimeBoth(9, bytes > 1000000 ? 5 : 5000, run);
}

}  // namespace

int main(int argc, char** argv) {
  int level = argc > 1 ? atoi(argv[1]) : 0;
  Check(nrt_init(NRT_FRAMEWORK_TYPE_NO_FW, "", ""));
  printf("%s, optimize_level %d\n", neuroncore_description(), level);

  {
    std::string program = programs::Add(programs::Shape(64, 64));
    Launch launch(program, level);
    Times ours = TimeBoth(9, 5000, [&] { launch.Run(); });
    Times raw = RawAdd(program, 64 * 64 * 4);
    printf("add 64x64: wall (cpu) nrt_execute %.2f (%.2f) us, raw PJRT %.2f (%.2f) us\n", 1e6 * ours.wall,
           1e6 * ours.processor, 1e6 * raw.wall, 1e6 * raw.processor);
    double fresh = Time(7, 5000, [&] {
      nrt_tensor_t* output;
      Check(nrt_tensor_allocate(NRT_TENSOR_PLACEMENT_DEVICE, 0, 64 * 64 * 4, nullptr, &output));
      Check(nrt_add_tensor_to_tensor_set(launch.outputs, "output0", output));
      launch.Run();
      nrt_tensor_free(&output);
    });
    double allocate = Time(7, 100000, [&] {
      nrt_tensor_t* output;
      Check(nrt_tensor_allocate(NRT_TENSOR_PLACEMENT_DEVICE, 0, 64 * 64 * 4, nullptr, &output));
      nrt_tensor_free(&output);
    });
    printf("  with a new output tensor each time %.2f us; allocate + free %.1f ns\n", 1e6 * fresh, 1e9 * allocate);
  }
  {
    std::string program = programs::Add("tensor<16777216xf32>");
    Launch launch(program, level);
    double ours = Time(7, 5, [&] { launch.Run(); });
    double fresh = Time(7, 5, [&] {
      nrt_tensor_t* output;
      Check(nrt_tensor_allocate(NRT_TENSOR_PLACEMENT_DEVICE, 0, size_t{64} << 20, nullptr, &output));
      Check(nrt_add_tensor_to_tensor_set(launch.outputs, "output0", output));
      launch.Run();
      nrt_tensor_free(&output);
    });
    printf("add 64 MB: nrt_execute %.2f ms, new output tensor each time %.2f ms, raw PJRT %.2f ms\n", 1e3 * ours,
           1e3 * fresh, 1e3 * RawAdd(program, size_t{64} << 20).wall);
  }

  struct Case {
    const char* name;
    std::string small, large;
  };
  const Case cases[] = {
      {"add", programs::Add(programs::Shape(128, 768)), programs::Add(programs::Shape(4096, 2048))},
      {"gelu", programs::Gelu(128, 768), programs::Gelu(4096, 2048)},
      {"silu bf16", programs::SiluBF16(128, 768), programs::SiluBF16(4096, 2048)},
      {"transpose", programs::Transpose(128, 768), programs::Transpose(4096, 2048)},
      {"column sum", programs::ColumnSum(128, 768), programs::ColumnSum(4096, 2048)},
      {"softmax", programs::Softmax(128, 768), programs::Softmax(4096, 2048)},
      {"layer_norm", programs::LayerNorm(128, 768), programs::LayerNorm(4096, 2048)},
      {"mm", programs::MatrixMultiply(128, 768, 768), programs::MatrixMultiply(1024, 1024, 1024)},
  };
  printf("%-12s %22s %22s %22s\n", "wall (cpu)", "compile ms", "128x768 us", "large ms");
  Times total = {0, 0};
  for (const Case& c : cases) {
    neuroncore_free(Compile(c.small, level).bytes);
    Times compile = TimeBoth(7, 1, [&] { neuroncore_free(Compile(c.small, level).bytes); });
    total = {total.wall + compile.wall, total.processor + compile.processor};
    Times times[2] = {};
    for (int i = 0; i < 2; ++i) {
      Launch launch(i == 0 ? c.small : c.large, level);
      launch.Run();
      times[i] = i == 0 ? TimeBoth(7, 100, [&] { launch.Run(); }) : TimeBoth(7, 3, [&] { launch.Run(); });
    }
    printf("%-12s %12.1f (%7.1f) %12.1f (%7.1f) %12.2f (%7.2f)\n", c.name, 1e3 * compile.wall, 1e3 * compile.processor,
           1e6 * times[0].wall, 1e6 * times[0].processor, 1e3 * times[1].wall, 1e3 * times[1].processor);
  }
  size_t count = std::size(cases);
  printf("%-12s %12.1f (%7.1f)\n", "mean", 1e3 * total.wall / count, 1e3 * total.processor / count);
  nrt_close();
}
