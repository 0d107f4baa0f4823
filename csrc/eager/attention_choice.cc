// SPDX-License-Identifier: Apache-2.0
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/native/transformers/sdp_utils_cpp.h>
#include <torch/csrc/autograd/python_variable.h>

#include "python_values.h"

// Which implementation scaled_dot_product_attention takes for this device where it is not lowered
// whole: under autograd, and in graphs. "Flash attention" is PyTorch's operator of the CPU, whose
// gradient needs the log-sum-exp instead of the probabilities. "Efficient attention" does the same for a
// mask with a gradient and for values of another size; and it is the one that DTensor can shard, and that
// context parallelism replaces.
namespace neuron {
namespace {

bool differentiated(const std::optional<at::Tensor>& mask) {
  return at::GradMode::is_enabled() && mask.has_value() && mask->defined() && mask->requires_grad();
}

// Whether it is a DTensor, which has no rule for the operator of the CPU.
bool distributed(const at::Tensor& tensor) {
  if (!tensor.key_set().has(c10::DispatchKey::Python)) return false;
  const InterpreterLock lock;
  const PythonObject object = owned(THPVariable_Wrap(tensor));
  return PyObject_HasAttrString(object.get(), "device_mesh") != 0;
}

int64_t choose(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
               const std::optional<at::Tensor>& mask, double dropout_p, bool is_causal, std::optional<double> scale,
               bool enable_gqa) {
  const auto& context = at::globalContext();
  // Nothing broadcasts in the fused operators but the mask; they have no dropout.
  const bool fused = query.dim() == 4 && key.dim() == 4 && value.dim() == 4 && dropout_p == 0.0 &&
                     query.sym_size(0) == key.sym_size(0) &&
                     key.sym_sizes().slice(0, 3) == value.sym_sizes().slice(0, 3);
  const bool same_heads = fused && query.sym_size(1) == key.sym_size(1);
  const bool grouped = fused && enable_gqa && query.sym_size(1) % key.sym_size(1) == 0;
  const bool flash =
      (same_heads || grouped) && query.sym_size(3) == value.sym_size(3) && !differentiated(mask) && !distributed(query);
  if (flash && context.userEnabledFlashSDP()) return static_cast<int64_t>(sdp::SDPBackend::flash_attention);
  // It saves the log-sum-exp, which any gradient needs, for one of these three.
  const bool saves = query.requires_grad() || key.requires_grad() || value.requires_grad();
  if (same_heads && (saves || !differentiated(mask)) && context.userEnabledMemEfficientSDP()) {
    return static_cast<int64_t>(sdp::SDPBackend::efficient_attention);
  }
  return static_cast<int64_t>(sdp::SDPBackend::math);
}

}  // namespace
}  // namespace neuron

namespace at::native {
REGISTER_PRIVATEUSE1_DISPATCH(_fused_sdp_choice_stub, &neuron::choose)
}
