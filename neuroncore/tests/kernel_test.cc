// SPDX-License-Identifier: Apache-2.0
//
// Host kernels, and the built-in bounds check.

#include <atomic>
#include <cstring>
#include <stdexcept>
#include <thread>

#include "device.h"

namespace {

std::string CustomCall(const std::string& name, const std::string& config, const std::string& type,
                       const std::string& result = "") {
  std::string to = result.empty() ? type : result;
  return programs::Module("(%x: " + type + ") -> " + to, "    %0 = stablehlo.custom_call @" + name +
                                                             "(%x) {api_version = 4 : i32, backend_config = "
                                                             "{config = \"" +
                                                             config + "\"}} : (" + type + ") -> " + to +
                                                             "\n    return %0 : " + to + "\n");
}

struct Seen {
  int calls = 0;
  std::string config;
  neuroncore_buffer_t input = {};
  std::vector<int64_t> dims;
};

// Multiplies f32 by the number in config.
int Scale(void* context, const neuroncore_kernel_call_t* call, char*, size_t) {
  auto* seen = static_cast<Seen*>(context);
  ++seen->calls;
  seen->config = call->config;
  seen->input = call->inputs[0];
  seen->dims.assign(call->inputs[0].dims, call->inputs[0].dims + call->inputs[0].rank);
  size_t count = 1;
  for (int64_t extent : seen->dims) count *= static_cast<size_t>(extent);
  auto* from = static_cast<const float*>(call->inputs[0].data);
  auto* to = static_cast<float*>(call->outputs[0].data);
  float factor = call->config[0] == '\0' ? 1.0f : std::stof(call->config);
  for (size_t i = 0; i < count; ++i) to[i] = from[i] * factor;
  return 0;
}

int Broken(void*, const neuroncore_kernel_call_t*, char* error, size_t error_size) {
  snprintf(error, error_size, "the kernel is %s", "broken");
  return 1;
}

int Throwing(void*, const neuroncore_kernel_call_t*, char*, size_t) { throw std::runtime_error("thrown"); }

struct Scheduled {
  std::atomic<int> tasks{0};
  bool has_pool = false;
};

// Copies six f32, and schedules some tasks.
int Schedules(void* context, const neuroncore_kernel_call_t* call, char*, size_t) {
  constexpr int kWanted = 3;
  auto* scheduled = static_cast<Scheduled*>(context);
  scheduled->has_pool = call->schedule != nullptr;
  for (int i = 0; i < kWanted && scheduled->has_pool; ++i) {
    const bool accepted =
        call->schedule(call->pool, [](void* data) { ++static_cast<Scheduled*>(data)->tasks; }, scheduled);
    if (!accepted) return 1;
  }
  memcpy(call->outputs[0].data, call->inputs[0].data, 24);
  return 0;
}

Seen seen;
Scheduled scheduled;

}  // namespace

TEST(a_kernel_computes) {
  CHECK(neuroncore_has_kernel("test.scale"));
  CHECK(!neuroncore_has_kernel("test.other"));
  Model model(CustomCall("test.scale", "2.5", "tensor<2x3xf32>"));
  Tensor x(std::vector<float>{1, 2, 3, 4, 5, 6}), out(24);
  int before = seen.calls;
  model.Run({&x}, {&out});
  CHECK(out.Floats() == (std::vector<float>{2.5f, 5, 7.5f, 10, 12.5f, 15}));
  CHECK_EQ(seen.calls, before + 1);  // registering, compiling and loading do not call it
  CHECK_EQ(seen.config, "2.5");
  CHECK_EQ(seen.input.element_type, NEURONCORE_TYPE_F32);
  CHECK(seen.dims == (std::vector<int64_t>{2, 3}));
}

TEST(a_kernel_without_config) {
  Model model(programs::Module("(%x: tensor<2xf32>) -> tensor<2xf32>",
                               "    %0 = stablehlo.custom_call @test.scale(%x) {api_version = 4 : i32} : "
                               "(tensor<2xf32>) -> tensor<2xf32>\n    return %0 : tensor<2xf32>\n"));
  Tensor x(std::vector<float>{1, 2}), out(8);
  model.Run({&x}, {&out});
  CHECK_EQ(seen.config, "");
  CHECK(out.Floats() == (std::vector<float>{1, 2}));
}

TEST(a_kernel_is_registered_after_the_plugin_is_loaded_and_replaced) {
  static Seen first, second;
  OK(neuroncore_register_kernel("test.late", Scale, &first));
  Model model(CustomCall("test.late", "3", "tensor<1xf32>"));
  Tensor x(std::vector<float>{1}), out(4);
  model.Run({&x}, {&out});
  OK(neuroncore_register_kernel("test.late", Scale, &second));
  model.Run({&x}, {&out});
  CHECK_EQ(first.calls, 1);
  CHECK_EQ(second.calls, 1);
}

TEST(a_kernel_schedules_tasks_in_the_pool_of_XLA) {
  Model model(CustomCall("test.schedules", "", "tensor<6xf32>"));
  Tensor x(std::vector<float>{1, 2, 3, 4, 5, 6}), out(24);
  for (int expected = 3; expected <= 9; expected += 3) {
    model.Run({&x}, {&out});
    CHECK(scheduled.has_pool);
    CHECK(out.Floats() == x.Floats());
    while (scheduled.tasks < expected) std::this_thread::yield();  // some after the call, but all
  }
  CHECK_EQ(scheduled.tasks.load(), 9);
}

TEST(a_failing_kernel_fails_the_execution_only) {
  for (auto [name, text] : {std::pair("test.broken", "the kernel is broken"), std::pair("test.throwing", "thrown")}) {
    Model model(CustomCall(name, "", "tensor<1xf32>"));
    Model good(CustomCall("test.scale", "2", "tensor<1xf32>"));
    Tensor x(std::vector<float>{1}), out(4);
    for (int i = 0; i < 3; ++i) {
      FAILS(model.TryRun({&x}, {&out}), NRT_EXEC_COMPLETED_WITH_ERR);
      CHECK_CONTAINS(neuroncore_last_error(), text);
      CHECK_CONTAINS(neuroncore_last_error(), name);
      good.Run({&x}, {&out});
      CHECK_EQ(out.Floats()[0], 2.0f);
      CHECK_EQ(x.Floats()[0], 1.0f);
    }
  }
}

TEST(a_failing_program_that_updates_in_place) {
  Model model(programs::Module(
      "(%x: tensor<524288xf32> {tf.aliasing_output = 0 : i32}) -> (tensor<524288xf32>, tensor<524288xf32>)",
      "    %1 = stablehlo.custom_call @test.broken(%x) {api_version = 4 : i32} : (tensor<524288xf32>) -> "
      "tensor<524288xf32>\n    %0 = stablehlo.add %x, %1 : tensor<524288xf32>\n    return %0, %1 : "
      "tensor<524288xf32>, tensor<524288xf32>\n"));
  Tensor x(std::vector<float>(524288, 1)), out(524288 * 4);
  for (int i = 0; i < 3; ++i) {
    FAILS(model.TryRun({&x}, {&x, &out}), NRT_EXEC_COMPLETED_WITH_ERR);
    CHECK_EQ(x.Floats().size(), 524288u);  // undefined, but there
    x.Write(std::vector<float>(524288, 1));
    CHECK_EQ(x.Floats()[7], 1.0f);
  }
}

// A program that is one kernel, in MLIR's generic form, which runs without XLA.
std::string OneKernel(const std::string& name, const std::string& parameter, const std::string& attributes) {
  return programs::Module("(%arg0: tensor<6xf32>" + parameter + ") -> (tensor<6xf32>)",
                          "    %1 = \"stablehlo.reshape\"(%arg0) : (tensor<6xf32>) -> tensor<2x3xf32> loc(\"here\")\n"
                          "    %2 = \"stablehlo.custom_call\"(%1) {call_target_name = \"" +
                              name + "\", api_version = 4 : i32, backend_config = {config = \"4\"}" + attributes +
                              "} : (tensor<2x3xf32>) -> tensor<2x3xf32>\n"
                              "    %3 = \"stablehlo.reshape\"(%2) : (tensor<2x3xf32>) -> tensor<6xf32>\n"
                              "    func.return %3 : tensor<6xf32>\n");
}

const char kAliased[] = " {tf.aliasing_output = 0 : i32}";
const char kUpdates[] =
    ", output_operand_aliases = [#stablehlo.output_operand_alias<output_tuple_indices = [], operand_index = 0, "
    "operand_tuple_indices = []>]";

TEST(a_program_that_is_one_kernel) {
  Model model(OneKernel("test.scale", "", ""));
  Tensor x(std::vector<float>{1, 2, 3, 4, 5, 6}), out(24);
  const std::vector<float> scaled{4, 8, 12, 16, 20, 24};
  for (int i = 0; i < 3; ++i) {
    model.Run({&x}, {&out});
    CHECK(out.Floats() == scaled);
  }
  CHECK_EQ(seen.config, "4");
  Model schedules(OneKernel("test.schedules", "", ""));
  schedules.Run({&x}, {&out});
  CHECK(!scheduled.has_pool);
  CHECK(out.Floats() == x.Floats());
  CHECK(seen.dims == (std::vector<int64_t>{2, 3}));
  CHECK(x.Floats() == (std::vector<float>{1, 2, 3, 4, 5, 6}));
  // From and into slices, at any offset, and over its own operand.
  Tensor block(std::vector<float>(40, 1));
  Tensor from(block, 12, 24), to(block, 100, 24);
  model.Run({&from}, {&to});
  CHECK_EQ(block.Floats()[24], 1.0f);
  CHECK_EQ(block.Floats()[25], 4.0f);
  CHECK_EQ(block.Floats()[30], 4.0f);
  CHECK_EQ(block.Floats()[31], 1.0f);
  model.Run({&x}, {&x});
  CHECK(x.Floats() == scaled);
}

TEST(one_kernel_that_updates_its_operand) {
  Model model(OneKernel("test.scale", kAliased, kUpdates));
  Tensor x(std::vector<float>{1, 2, 3, 4, 5, 6}), out(24);
  model.Run({&x}, {&out});  // another output: the operand stays
  CHECK(x.Floats() == (std::vector<float>{1, 2, 3, 4, 5, 6}));
  CHECK(out.Floats() == (std::vector<float>{4, 8, 12, 16, 20, 24}));
  const uint64_t address = x.Address();
  model.Run({&x}, {&x});
  CHECK_EQ(x.Address(), address);
  CHECK(x.Floats() == (std::vector<float>{4, 8, 12, 16, 20, 24}));
  // A part of a block is replaced, not the block.
  Tensor block(std::vector<float>(40, 1));
  Tensor part(block, 64, 24);
  model.Run({&part}, {&part});
  CHECK_EQ(block.Floats()[15], 1.0f);
  CHECK_EQ(block.Floats()[16], 4.0f);
  CHECK_EQ(block.Floats()[21], 4.0f);
  CHECK_EQ(block.Floats()[22], 1.0f);
}

TEST(one_kernel_that_fails) {
  for (auto [name, text] : {std::pair("test.broken", "the kernel is broken"), std::pair("test.throwing", "thrown")}) {
    for (auto [parameter, updates] : {std::pair("", ""), std::pair(kAliased, kUpdates)}) {
      Model model(OneKernel(name, parameter, updates));
      Tensor x(std::vector<float>{1, 2, 3, 4, 5, 6}), out(24);
      FAILS(model.TryRun({&x}, {&out}), NRT_EXEC_COMPLETED_WITH_ERR);
      CHECK_CONTAINS(neuroncore_last_error(), text);
      CHECK_CONTAINS(neuroncore_last_error(), name);
      CHECK(x.Floats() == (std::vector<float>{1, 2, 3, 4, 5, 6}));
    }
  }
}

TEST(kernels_that_cannot_be_registered) {
  FAILS(neuroncore_register_kernel("", Scale, nullptr), NRT_INVALID);
  FAILS(neuroncore_register_kernel(nullptr, Scale, nullptr), NRT_INVALID);
  FAILS(neuroncore_register_kernel("x", nullptr, nullptr), NRT_INVALID);
  FAILS(neuroncore_register_kernel("neuroncore.mine", Scale, nullptr), NRT_INVALID);
  CHECK(!neuroncore_has_kernel("neuroncore.mine"));
  CHECK(!neuroncore_has_kernel(nullptr));
}

TEST(unknown_kernels_do_not_compile_or_run) {
  std::string program = CustomCall("test.unknown", "", "tensor<1xf32>");
  void* neff = nullptr;
  size_t size;
  char* error = nullptr;
  NRT_STATUS status = neuroncore_compile(program.data(), program.size(), nullptr, 0, &neff, &size, &error);
  if (status == NRT_SUCCESS) {
    nrt_model_t* model;
    status = nrt_load(neff, size, 0, 1, &model);
    if (status == NRT_SUCCESS) {
      Tensor x(std::vector<float>{1}), out(4);
      TensorSet in("input", {&x}), outs("output", {&out});
      status = nrt_execute(model, in.handle, outs.handle);
      nrt_unload(model);
    }
    neuroncore_free(neff);
  }
  neuroncore_free(error);
  CHECK(status != NRT_SUCCESS);
  CHECK_CONTAINS(neuroncore_last_error(), "test.unknown");
}

TEST(indices_in_bounds_pass_through) {
  Model plain(CustomCall("neuroncore.check_index", "limit=5;op=aten::embedding", "tensor<2x2xi64>"));
  Tensor x(std::vector<int64_t>{0, 4, 2, 3}), out(32);
  plain.Run({&x}, {&out});
  CHECK(out.Read<int64_t>() == (std::vector<int64_t>{0, 4, 2, 3}));
  Model wrapped(CustomCall("neuroncore.check_index", "limit=5;wrap=1;op=aten::index", "tensor<4xi32>"));
  Tensor y(std::vector<int32_t>{-5, -1, 0, 4}), out32(16);
  wrapped.Run({&y}, {&out32});
  CHECK(out32.Read<int32_t>() == (std::vector<int32_t>{0, 4, 0, 4}));
}

TEST(indices_out_of_bounds_fail_and_the_next_execution_works) {
  Model plain(CustomCall("neuroncore.check_index", "limit=5;op=aten::embedding", "tensor<2xi64>"));
  Model wrapped(CustomCall("neuroncore.check_index", "limit=5;wrap=1;op=aten::index", "tensor<2xi64>"));
  Tensor good(std::vector<int64_t>{0, 4}), out(16);
  for (int64_t bad : {int64_t{5}, int64_t{-1}, INT64_MIN, INT64_MAX}) {
    Tensor x(std::vector<int64_t>{0, bad});
    FAILS(plain.TryRun({&x}, {&out}), NRT_EXEC_OOB);
    CHECK_CONTAINS(neuroncore_last_error(), "aten::embedding: index " + std::to_string(bad) + " is out of bounds");
    plain.Run({&good}, {&out});
    CHECK(out.Read<int64_t>() == (std::vector<int64_t>{0, 4}));
  }
  Tensor x(std::vector<int64_t>{-6, 0});
  FAILS(wrapped.TryRun({&x}, {&out}), NRT_EXEC_OOB);
  Tensor last(std::vector<int64_t>{-5, 0});
  wrapped.Run({&last}, {&out});
}

TEST(a_check_inside_a_program) {
  Model gather(programs::Module(
      "(%w: tensor<3x2xf32>, %i: tensor<2xi64>) -> tensor<2x2xf32>",
      "    %c = stablehlo.custom_call @neuroncore.check_index(%i) {api_version = 4 : i32, backend_config = {config = "
      "\"limit=3;op=aten::embedding\"}} : (tensor<2xi64>) -> tensor<2xi64>\n"
      "    %r = stablehlo.reshape %c : (tensor<2xi64>) -> tensor<2x1xi64>\n"
      "    %g = \"stablehlo.gather\"(%w, %r) <{dimension_numbers = #stablehlo.gather<offset_dims = [1], "
      "collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, slice_sizes = array<i64: 1, 2>}> : "
      "(tensor<3x2xf32>, tensor<2x1xi64>) -> tensor<2x2xf32>\n    return %g : tensor<2x2xf32>\n"));
  Tensor w(std::vector<float>{0, 1, 10, 11, 20, 21}), out(16);
  Tensor good(std::vector<int64_t>{2, 0}), bad(std::vector<int64_t>{2, 3});
  gather.Run({&w, &good}, {&out});
  CHECK(out.Floats() == (std::vector<float>{20, 21, 0, 1}));
  FAILS(gather.TryRun({&w, &bad}, {&out}), NRT_EXEC_OOB);
  gather.Run({&w, &good}, {&out});
  CHECK(out.Floats() == (std::vector<float>{20, 21, 0, 1}));
}

TEST(an_undefined_result_keeps_the_memory_of_the_parameter_it_updates) {
  Model model(programs::Module(
      "(%x: tensor<4xf32> {tf.aliasing_output = 1 : i32}) -> (tensor<4xf32>, tensor<4xf32>)",
      "    %y = stablehlo.add %x, %x : tensor<4xf32>\n"
      "    %u = stablehlo.custom_call @neuroncore.undefined(%y) {api_version = 4 : i32} : (tensor<4xf32>) -> "
      "tensor<4xf32>\n    return %y, %u : tensor<4xf32>, tensor<4xf32>\n"));
  Tensor x(std::vector<float>{1, 2, 3, 4}), out(16);
  model.Run({&x}, {&out, &x});
  CHECK(out.Floats() == (std::vector<float>{2, 4, 6, 8}));
}

int main() {
  // Before the plugin is loaded.
  neuroncore_register_kernel("test.scale", Scale, &seen);
  neuroncore_register_kernel("test.broken", Broken, nullptr);
  neuroncore_register_kernel("test.throwing", Throwing, nullptr);
  neuroncore_register_kernel("test.schedules", Schedules, &scheduled);
  return RunOnDevice();
}
