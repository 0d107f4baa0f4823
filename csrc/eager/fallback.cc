// SPDX-License-Identifier: Apache-2.0
#include <ATen/native/CPUFallback.h>
#include <c10/util/Exception.h>

#include "../nrt/environment.h"
#include "call_site.h"
#include "dispatch.h"

namespace neuron {

void run_on_cpu(OperatorEntry& entry, torch::jit::Stack* stack) {
  using environment::FallbackChoice;
  const FallbackChoice choice = environment::fallback();
  if (choice == FallbackChoice::Error) {
    TORCH_CHECK_NOT_IMPLEMENTED(false, entry.name(),
                                " has no program for the neuron device and would run on the CPU, which "
                                "TORCH_NEURONX_FALLBACK=error forbids");
  }
  entry.fell_back.store(true, std::memory_order_relaxed);
  // Printing picks the finite values to find a format: that reads the tensor anyway.
  if (choice == FallbackChoice::Warn && !called_by_printing() && !entry.warned.exchange(true)) {
    const std::string where = describe(current_call_site());
    TORCH_WARN(entry.name(), " runs on the CPU: its result cannot have a static shape, or the neuron device has no ",
               "lowering for it. Its operands are copied to the host and back at every call",
               where.empty() ? "" : " (first at ", where, where.empty() ? "." : ").",
               " Set TORCH_NEURONX_FALLBACK=error to forbid this, or silent to hide this message.");
  }
  at::native::cpu_fallback(entry.handle(), stack);
}

}  // namespace neuron
