// SPDX-License-Identifier: Apache-2.0
#pragma once

// What this process may use of the processor: PyTorch's setting ATEN_CPU_CAPABILITY and oneDNN's ONEDNN_MAX_CPU_ISA
// can lower it.
namespace neuron {

// The vectors of AVX2 with fused multiply-add; those of AVX-512, as server processors have them.
bool has_avx2();
bool has_avx512();
bool has_avx512_bfloat16();
bool has_amx();

// Whether oneDNN's products of bfloat16 are faster than those of float32.
bool has_fast_bfloat16();

// Whether oneDNN multiplies blocks of float32 (at::native::cpublas::brgemm).
bool has_onednn_blocks();

// Whether ATen multiplies float32 by MKL, and MKL knows the processor's vectors. MKL heeds no setting of PyTorch's.
bool has_fast_mkl();

}  // namespace neuron
