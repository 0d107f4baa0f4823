// SPDX-License-Identifier: Apache-2.0
#include <pybind11/pybind11.h>

#include <device/bindings.h>
#include <distributed/bindings.h>
#include <eager/bindings.h>
#include <graph/bindings.h>
#include <kernels/kernels.h>
#include <nrt/bindings.h>
#include <python/frame_memory.h>

PYBIND11_MODULE(_C, m) {
  m.doc() = "PyTorch's device interfaces over the Neuron runtime.";
  neuron::bind_runtime(m);
  neuron::register_host_kernels();
  neuron::bind_device(m);
  neuron::bind_distributed(m);
  neuron::bind_frame_memory(m);
  register_eager_bindings(m.ptr());
  register_graph_bindings(m.ptr());
}
