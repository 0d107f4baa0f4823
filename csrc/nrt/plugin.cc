// SPDX-License-Identifier: Apache-2.0
#include <nrt/plugin.h>

#include <unistd.h>

#include <c10/util/Exception.h>
#include <pybind11/pybind11.h>

#include <nrt/environment.h>

namespace neuron {

void provide_pjrt_plugin() {
  if (const auto given = environment::pjrt_plugin()) {
    TORCH_CHECK(access(given->c_str(), R_OK) == 0, "TORCH_NEURONX_PJRT_PLUGIN names '", *given,
                "', which cannot be read. Name an XLA CPU PJRT plugin (a .so file), or unset the variable to "
                "use an installed one.");
    return;
  }
  std::string found;
  std::string failure;
  {
    pybind11::gil_scoped_acquire gil;
    try {
      const auto path = pybind11::module_::import("torch_neuronx.neuron.plugin").attr("find_pjrt_plugin")();
      if (!path.is_none()) found = path.cast<std::string>();
    } catch (const pybind11::error_already_set& error) {
      failure = error.what();
    }
  }
  TORCH_CHECK(failure.empty(), "Looking for an XLA CPU PJRT plugin failed: ", failure);
  TORCH_CHECK(!found.empty(),
              "The software NeuronCore runs on an XLA CPU PJRT plugin, and none is installed. Install one with "
              "`pip install fastatomstruct-xla-cpu`, or set TORCH_NEURONX_PJRT_PLUGIN to the path of one.");
  environment::set_pjrt_plugin(found);
}

}  // namespace neuron
