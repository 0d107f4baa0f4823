// SPDX-License-Identifier: Apache-2.0
#include "kernels.h"

#include <omp.h>

#include <ATen/core/grad_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <nrt/callback.h>
#include <nrt/compiler.h>

#include "kernel_call.h"
#include "processor.h"
#include "shared_loop.h"

namespace neuron {
namespace {

bool always() { return true; }

// Where neither library has the processor's best vectors the products are our own.
bool multiplies_bfloat16() { return has_fast_bfloat16() || has_avx2(); }
bool multiplies_f32() { return has_fast_mkl() || has_avx2(); }

struct HostKernel {
  const char* name;
  Kernel function;
  bool (*pays)();
};

// float16 has attention and grouped products only: ATen's other float16 kernels are slower than XLA's float32 ones.
const HostKernel kKernels[] = {
    {"neuron.attention", &attention, &always},
    {"neuron.attention_backward", &attention_backward, &always},
    {"neuron.attention_few_queries", &attention_few_queries, &always},
    {"neuron.convolution", &convolution, &always},
    {"neuron.convolution_backward", &convolution_backward, &always},
    {"neuron.convolution_bf16", &convolution, &has_avx512_bfloat16},
    {"neuron.convolution_backward_bf16", &convolution_backward, &has_avx512_bfloat16},
    {"neuron.cross_entropy_gradient", &cross_entropy_gradient, &always},
    {"neuron.gated_silu", &gated_silu, &always},
    {"neuron.grouped_matmul", &grouped_matmul, &always},
    {"neuron.group_moments", &group_moments, &always},
    {"neuron.log_softmax", &log_softmax, &always},
    {"neuron.matmul", &matmul, &multiplies_bfloat16},
    {"neuron.matmul_f32", &matmul, &multiplies_f32},
    {"neuron.matmul_few_rows", &matmul_few_rows, &always},
    {"neuron.normalize_channels", &normalize_channels, &always},
    {"neuron.pointwise", &pointwise, &always},
    {"neuron.rms_norm", &rms_norm, &always},
    {"neuron.rotary", &rotary, &always},
    {"neuron.softmax_statistics", &softmax_statistics, &always},
};

thread_local bool has_run_kernels = false;

// Called by XLA, which no exception may reach, in a thread whose dispatch state may be anything: a
// synchronizing caller runs the queue itself, inside of its modes. Only CPU kernels are wanted here.
int run(void* context, const neuroncore_kernel_call_t* call, char* error, size_t error_size) {
  return answer(error, error_size, [&] {
    const at::AutoGradMode no_gradients(false);
    const c10::impl::ForceDispatchKeyGuard plain(
        c10::default_included_set, c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset);
    has_run_kernels = true;
    const LoopsOfCall loops(*call);
    static_cast<const HostKernel*>(context)->function(KernelCall(*call));
  });
}

}  // namespace

void register_host_kernels() {
  for (const HostKernel& kernel : kKernels) {
    if (kernel.pays()) register_kernel(kernel.name, &run, const_cast<HostKernel*>(&kernel));
  }
}

void release_host_threads() {
  if (!has_run_kernels) return;
  has_run_kernels = false;
  omp_pause_resource_all(omp_pause_soft);
}

}  // namespace neuron
