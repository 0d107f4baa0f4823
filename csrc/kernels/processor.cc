// SPDX-License-Identifier: Apache-2.0
#include "processor.h"

#include <ATen/Context.h>
#include <ATen/Version.h>
#include <ATen/cpu/Utils.h>
#include <ATen/native/CPUBlas.h>

namespace neuron {

#if defined(__x86_64__)

namespace {

bool supports_avx512() { return __builtin_cpu_supports("x86-64-v4"); }

// What `ATEN_CPU_CAPABILITY` leaves of the processor.
bool may_use_avx512() {
  static const bool allowed = at::get_cpu_capability() == "AVX512";
  return allowed;
}

// What `ONEDNN_MAX_CPU_ISA` leaves: brgemm raises where there is no code for a type.
template <typename T>
bool multiplies_blocks() {
  try {
    const T x[32] = {}, y[32 * 16] = {};
    float z[16];
    at::native::cpublas::brgemm(1, 16, 32, 32, 16, 16, false, x, y, z);
    at::native::cpublas::brgemm_release();
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

bool multiplies_bfloat16_blocks() {
  static const bool allowed = multiplies_blocks<at::BFloat16>();
  return allowed;
}

}  // namespace

bool has_avx2() { return __builtin_cpu_supports("x86-64-v3"); }
bool has_avx512() { return supports_avx512() && may_use_avx512(); }
bool has_avx512_bfloat16() { return has_avx512() && __builtin_cpu_supports("avx512bf16"); }

bool has_amx() {
  static const bool permitted =
      has_avx512() && __builtin_cpu_supports("amx-tile") && __builtin_cpu_supports("amx-bf16") && at::cpu::init_amx();
  return permitted && at::native::cpublas::could_pack(at::kBFloat16);
}

// With AMX, or with the instructions of AVX512_BF16 where those are twice as fast as float32 ones. That is AMD; Intel's
// take twice as long.
bool has_fast_bfloat16() {
  if (!has_avx512_bfloat16()) return false;
  if (has_amx()) return true;
  return __builtin_cpu_is("amd") && at::globalContext().userEnabledMkldnn() && multiplies_bfloat16_blocks();
}

bool has_onednn_blocks() {
  static const bool allowed = has_avx512() && multiplies_blocks<float>();
  return allowed;
}

bool has_fast_mkl() {
  return __builtin_cpu_is("intel") && has_avx2() && at::hasMKL() && has_avx512() == supports_avx512();
}

#else

bool has_avx2() { return false; }
bool has_avx512() { return false; }
bool has_avx512_bfloat16() { return false; }
bool has_amx() { return false; }
bool has_fast_bfloat16() { return false; }
bool has_onednn_blocks() { return false; }
bool has_fast_mkl() { return false; }

#endif  // defined(__x86_64__)

}  // namespace neuron
