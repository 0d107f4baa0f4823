// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

// Every environment variable that the extension reads, each in one place. The Python side has its
// own table in torch_neuronx/environment.py.
namespace neuron::environment {

enum class RuntimeChoice { Auto, Nrt, Software };

// TORCH_NEURONX_RUNTIME: auto, nrt or software.
RuntimeChoice runtime();
// TORCH_NEURONX_PJRT_PLUGIN: path of the plugin that the software core runs on.
std::optional<std::string> pjrt_plugin();
void set_pjrt_plugin(const std::string& path);
// NEURON_RT_VISIBLE_CORES is set.
bool visible_cores_given();
// The user said which or how many cores are this process's: NEURON_RT_VISIBLE_CORES or NEURON_RT_NUM_CORES.
bool cores_given();
void set_visible_cores(const std::string& cores);
// LOCAL_RANK of a launcher such as torchrun; -1 without one.
int local_rank();
// GROUP_RANK of torchrun: which of its agents, one for each host, has started the process. 0 without one.
int launcher_node();
// LOCAL_WORLD_SIZE of a launcher; 1 without one.
int local_world_size();
// Under a launcher: how many threads each process of this machine should run, and NPROC, which XLA
// takes for that number, set accordingly unless the user has. 0 without a launcher.
int share_processors();
// Each process of this machine can keep a second thread busy.
bool has_spare_processor();
// OMP_NUM_THREADS is set.
bool threads_given();
// NEURON_LAUNCH_BLOCKING: wait after every launch.
bool launch_blocking();

enum class FallbackChoice { Warn, Error, Silent };

// TORCH_NEURONX_FALLBACK: what happens when an operator has no program and would run on the CPU.
FallbackChoice fallback();

}  // namespace neuron::environment
