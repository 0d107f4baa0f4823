// SPDX-License-Identifier: Apache-2.0
//
// nrt_init ... nrt_close, the cores of a process, and what answers before and after.

#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "device.h"

TEST(before_init_everything_answers_uninitialized) {
  nrt_tensor_t* tensor;
  FAILS(nrt_tensor_allocate(NRT_TENSOR_PLACEMENT_DEVICE, 0, 4, nullptr, &tensor), NRT_UNINITIALIZED);
  nrt_tensor_set_t* set;
  FAILS(nrt_allocate_tensor_set(&set), NRT_UNINITIALIZED);
  nrt_model_t* model;
  FAILS(nrt_load("x", 1, 0, 1, &model), NRT_UNINITIALIZED);
  FAILS(nrt_execute(nullptr, nullptr, nullptr), NRT_UNINITIALIZED);
  nrt_vnc_memory_stats_t stats;
  FAILS(nrt_get_vnc_memory_stats(0, &stats, sizeof(stats), nullptr), NRT_UNINITIALIZED);
  FAILS(nrt_barrier(0, 0, 1), NRT_UNINITIALIZED);
  CHECK_EQ(neuroncore_execution_time_ns(0), 0u);
}

TEST(counts_and_version_need_no_init) {
  uint32_t count = 0;
  OK(nrt_get_visible_vnc_count(&count));
  CHECK_EQ(count, 8u);
  OK(nrt_get_total_vnc_count(&count));
  CHECK_EQ(count, 8u);
  FAILS(nrt_get_visible_vnc_count(nullptr), NRT_INVALID);
  nrt_version_t version;
  OK(nrt_get_version(&version, sizeof(version)));
  CHECK_CONTAINS(version.rt_detail, "software");
  CHECK_EQ(sizeof(version), 224u);
  CHECK_EQ(sizeof(nrt_tensor_info_t), 296u);
  CHECK_EQ(sizeof(nrt_instance_info_t), 32u);
}

TEST(an_unusable_plugin_is_explained) {
  // Before anything has loaded the plugin, because it stays loaded.
  std::string plugin = getenv("TORCH_NEURONX_PJRT_PLUGIN");
  unsetenv("TORCH_NEURONX_PJRT_PLUGIN");
  FAILS(nrt_init(NRT_FRAMEWORK_TYPE_NO_FW, "", ""), NRT_FAILURE);
  CHECK_CONTAINS(neuroncore_last_error(), "TORCH_NEURONX_PJRT_PLUGIN");
  uint32_t count = 7;
  OK(nrt_get_visible_vnc_count(&count));
  CHECK_EQ(count, 0u);
  CHECK_EQ(std::string(neuroncore_fingerprint()), "");
  setenv("TORCH_NEURONX_PJRT_PLUGIN", "/does/not/exist.so", 1);
  FAILS(nrt_init(NRT_FRAMEWORK_TYPE_NO_FW, "", ""), NRT_FAILURE);
  CHECK_CONTAINS(neuroncore_last_error(), "/does/not/exist.so");
  setenv("TORCH_NEURONX_PJRT_PLUGIN", "libm.so.6", 1);
  FAILS(nrt_init(NRT_FRAMEWORK_TYPE_NO_FW, "", ""), NRT_FAILURE);
  CHECK_CONTAINS(neuroncore_last_error(), "GetPjrtApi");
  setenv("TORCH_NEURONX_PJRT_PLUGIN", plugin.c_str(), 1);
}

TEST(compiling_needs_no_init) {
  CHECK(Compile(programs::Add("tensor<4xf32>")).size() > 1024);
  CHECK_CONTAINS(neuroncore_fingerprint(), "pjrt=0.");
  CHECK_CONTAINS(neuroncore_description(), "software NeuronCore");
  CHECK_EQ(std::string(neuroncore_plugin_path()), getenv("TORCH_NEURONX_PJRT_PLUGIN"));
}

uint32_t VisibleCores() {
  uint32_t count = 0;
  OK(nrt_get_visible_vnc_count(&count));
  return count;
}

TEST(visible_cores) {
  struct {
    const char* text;
    uint32_t count;
    int first;
  } good[] = {{"0", 1, 0}, {"0-3", 4, 0}, {"2,3", 2, 2}, {"1,2-4,5", 5, 1}, {"7", 1, 7}};
  for (auto [text, count, first] : good) {
    setenv("NEURON_RT_VISIBLE_CORES", text, 1);
    CHECK_EQ(VisibleCores(), count);
    Init();
    {
      Tensor tensor(4, static_cast<int>(count) - 1);
      nrt_tensor_device_allocation_info_t info;
      OK(nrt_tensor_get_device_allocation_info(tensor.handle, &info));
      CHECK_EQ(info.hbm_index, first + static_cast<int>(count) - 1);
    }
    nrt_tensor_t* beyond;
    FAILS(nrt_tensor_allocate(NRT_TENSOR_PLACEMENT_DEVICE, static_cast<int>(count), 4, nullptr, &beyond), NRT_INVALID);
    nrt_close();
  }
  for (const char* text : {"3,5", "3-1", "1,1", "2,1", "a", "1-", "1,", "0-8", "-1"}) {
    setenv("NEURON_RT_VISIBLE_CORES", text, 1);
    uint32_t count;
    FAILS(nrt_get_visible_vnc_count(&count), NRT_INVALID);
    FAILS(nrt_init(NRT_FRAMEWORK_TYPE_NO_FW, "", ""), NRT_INVALID);
    CHECK_CONTAINS(neuroncore_last_error(), "NEURON_RT_VISIBLE_CORES");
  }
  unsetenv("NEURON_RT_VISIBLE_CORES");
  setenv("NEURON_RT_NUM_CORES", "3", 1);
  CHECK_EQ(VisibleCores(), 3u);
  unsetenv("NEURON_RT_NUM_CORES");
  setenv("LOCAL_WORLD_SIZE", "12", 1);
  CHECK_EQ(VisibleCores(), 12u);
  unsetenv("LOCAL_WORLD_SIZE");
  setenv("TORCH_NEURONX_SOFTWARE_CORES", "2", 1);
  CHECK_EQ(VisibleCores(), 2u);
  unsetenv("TORCH_NEURONX_SOFTWARE_CORES");
}

TEST(instance_info_says_software) {
  nrt_instance_info_t info;
  OK(nrt_get_instance_info(&info, sizeof(info)));
  CHECK_EQ(info.family, static_cast<uint32_t>(NRT_INSTANCE_TRN2));
  CHECK_EQ(std::string(info.arch_name), "software");
  setenv("NEURON_PLATFORM_TARGET_OVERRIDE", "trn3", 1);
  OK(nrt_get_instance_info(&info, sizeof(info)));
  CHECK_EQ(info.family, static_cast<uint32_t>(NRT_INSTANCE_TRN3));
  unsetenv("NEURON_PLATFORM_TARGET_OVERRIDE");
}

TEST(after_close_everything_answers_closed_and_frees_still_work) {
  Init();
  auto* model = new Model(programs::Add("tensor<4xf32>"));
  auto* tensor = new Tensor(std::vector<float>{1, 2, 3, 4});
  auto* slice = new Tensor(*tensor, 4, 8);
  auto* set = new TensorSet("input", {tensor, tensor});
  nrt_close();
  nrt_close();
  float value;
  FAILS(nrt_tensor_read(tensor->handle, &value, 0, 4), NRT_CLOSED);
  nrt_tensor_t* other;
  FAILS(nrt_tensor_allocate(NRT_TENSOR_PLACEMENT_DEVICE, 0, 4, nullptr, &other), NRT_CLOSED);
  FAILS(nrt_execute(model->handle, set->handle, set->handle), NRT_CLOSED);

  Init();
  // From before: refused, also now that there is a runtime again.
  FAILS(nrt_tensor_read(tensor->handle, &value, 0, 4), NRT_CLOSED);
  FAILS(nrt_execute(model->handle, set->handle, set->handle), NRT_CLOSED);
  {
    Model fresh(programs::Add("tensor<4xf32>"));
    Tensor out(16);
    FAILS(fresh.TryRun({tensor, tensor}, {&out}), NRT_CLOSED);
    Tensor x(std::vector<float>{1, 2, 3, 4});
    fresh.Run({&x, &x}, {&out});
    CHECK_EQ(out.Floats()[3], 8.0f);
  }
  delete set;
  delete tensor;
  delete slice;
  delete model;
  nrt_close();
}

TEST(a_forked_child_gets_an_error_and_can_exit) {
  Init();
  {
    Tensor tensor(std::vector<float>{1, 2, 3, 4});
    pid_t child = fork();
    if (child == 0) {
      alarm(20);  // a child that hangs fails the test
      float value;
      bool refused = nrt_tensor_read(tensor.handle, &value, 0, 4) == NRT_FAILURE &&
                     std::string(neuroncore_last_error()).find("forked") != std::string::npos;
      std::string program = programs::Add("tensor<4xf32>");
      void* neff;
      size_t size;
      refused = refused &&
                neuroncore_compile(program.data(), program.size(), nullptr, 0, &neff, &size, nullptr) == NRT_FAILURE;
      nrt_tensor_t* copy = tensor.handle;
      nrt_tensor_free(&copy);
      nrt_close();
      _exit(refused ? 0 : 1);
    }
    int status = -1;
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    CHECK_EQ(tensor.Floats()[3], 4.0f);  // the parent goes on
  }
  nrt_close();
}

TEST(status_names) {
  CHECK_EQ(std::string(nrt_get_status_as_str(NRT_EXEC_OOB)), "NRT_EXEC_OOB");
  CHECK_EQ(std::string(nrt_get_status_as_str(static_cast<NRT_STATUS>(4711))), "NRT_UNKNOWN");
}

int main() {
  // The order matters: tests state what holds before the first nrt_init. The plugin must not be loaded yet in one.
  std::vector<check::Case>& cases = check::Cases();
  std::swap(cases[0], cases[2]);
  return check::RunAll();
}
