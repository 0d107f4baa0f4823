// SPDX-License-Identifier: Apache-2.0
#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/native/transformers/sdp_utils_cpp.h>

// Which implementation scaled_dot_product_attention takes for this device where it is not lowered
// whole: under autograd, and in graphs. "Flash attention" is PyTorch's operator of the CPU, whose
// gradient needs the log-sum-exp instead of the probabilities; the lowering table has both.
namespace neuron {
namespace {

bool differentiated(const std::optional<at::Tensor>& mask) {
  return at::GradMode::is_enabled() && mask.has_value() && mask->defined() && mask->requires_grad();
}

int64_t choose(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
               const std::optional<at::Tensor>& mask, double dropout_p, bool is_causal, std::optional<double> scale,
               bool enable_gqa) {
  const bool four_dimensional = query.dim() == 4 && key.dim() == 4 && value.dim() == 4;
  // Nothing broadcasts in the fused operator but the mask; it has no dropout and no gradient of the mask.
  const bool serves =
      four_dimensional && dropout_p == 0.0 && !differentiated(mask) && query.sym_size(0) == key.sym_size(0) &&
      key.sym_sizes().slice(0, 3) == value.sym_sizes().slice(0, 3) && query.sym_size(3) == value.sym_size(3) &&
      (query.sym_size(1) == key.sym_size(1) || (enable_gqa && query.sym_size(1) % key.sym_size(1) == 0));
  const bool flash = serves && at::globalContext().userEnabledFlashSDP();
  return static_cast<int64_t>(flash ? sdp::SDPBackend::flash_attention : sdp::SDPBackend::math);
}

}  // namespace
}  // namespace neuron

namespace at::native {
REGISTER_PRIVATEUSE1_DISPATCH(_fused_sdp_choice_stub, &neuron::choose)
}
