// SPDX-License-Identifier: Apache-2.0
#include "amx.h"

#include <ATen/cpu/Utils.h>
#include <ATen/native/CPUBlas.h>

namespace neuron {

bool has_amx() {
#if defined(__x86_64__)
  static const bool permitted =
      __builtin_cpu_supports("amx-tile") && __builtin_cpu_supports("amx-bf16") && at::cpu::init_amx();
  // ONEDNN_MAX_CPU_ISA may forbid it.
  return permitted && at::native::cpublas::could_pack(at::kBFloat16);
#else
  return false;
#endif
}

}  // namespace neuron
