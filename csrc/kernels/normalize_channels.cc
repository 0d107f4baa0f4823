// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>

#include "kernel_call.h"
#include "shared_loop.h"
#include "silu.h"
#include "vectorized.h"

// Images with their channels last, moved and scaled channel by channel: see
// torch_neuronx/lowering/families/normalization.py.
namespace neuron {
namespace {

// Elements that one thread takes at least.
constexpr int64_t kGrain = 16384;

// What every position of an image is treated with: (channels).
struct Channels {
  const float *shift, *scale, *bias;
  int64_t count;
};

template <typename T, bool kSilu>
NEURON_INLINE void positions(const Channels& channels, const void* from, void* to, int64_t count) {
  const T* x = static_cast<const T*>(from);
  T* out = static_cast<T*>(to);
  for (int64_t i = 0; i < count; ++i, x += channels.count, out += channels.count) {
#pragma GCC ivdep
    for (int64_t c = 0; c < channels.count; ++c) {
      const float y = (load(x[c]) - channels.shift[c]) * channels.scale[c] + channels.bias[c];
      store(&out[c], kSilu ? silu(y) : y);
    }
  }
}

using Positions = void (*)(const Channels& channels, const void* from, void* to, int64_t count);

#define NEURON_POSITIONS(name, T, is_silu)                                                           \
  NEURON_VECTORIZED void name(const Channels& channels, const void* from, void* to, int64_t count) { \
    positions<T, is_silu>(channels, from, to, count);                                                \
  }
NEURON_POSITIONS(plain_f32, float, false)
NEURON_POSITIONS(plain_bf16, BFloat16, false)
NEURON_POSITIONS(silu_f32, float, true)
NEURON_POSITIONS(silu_bf16, BFloat16, true)

const float* floats(const neuroncore_buffer_t& buffer, const char* name) {
  TORCH_CHECK(buffer.element_type == NEURONCORE_TYPE_F32, name, ": expected f32, got element type ",
              buffer.element_type);
  return static_cast<const float*>(buffer.data);
}

}  // namespace

// Operands: x (n, positions, channels), shift and scale (n, channels), bias (channels). Config: silu=0 or 1.
void normalize_channels(const KernelCall& call) {
  const neuroncore_buffer_t& x = call.input_buffer(0);
  const bool wide = x.element_type == NEURONCORE_TYPE_F32;
  TORCH_CHECK(wide || x.element_type == NEURONCORE_TYPE_BF16, "expected f32 or bf16, got element type ",
              x.element_type);
  TORCH_CHECK(x.rank == 3, "expected three dimensions, got ", x.rank);
  const bool with_silu = call.integer("silu") != 0;
  const Positions function = wide ? (with_silu ? silu_f32 : plain_f32) : (with_silu ? silu_bf16 : plain_bf16);
  const float *shift = floats(call.input_buffer(1), "shift"), *scale = floats(call.input_buffer(2), "scale");
  const float* bias = floats(call.input_buffer(3), "bias");
  const int64_t length = x.dims[1], channels = x.dims[2], size = channels * (wide ? sizeof(float) : sizeof(BFloat16));
  const auto* from = static_cast<const char*>(x.data);
  auto* to = static_cast<char*>(call.output_buffer(0).data);
  shared_loop(x.dims[0] * length, rows_of_share(kGrain, channels), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin, next; i < end; i = next) {
      const int64_t image = i / length;
      next = std::min(end, (image + 1) * length);
      const Channels of_image{shift + image * channels, scale + image * channels, bias, channels};
      function(of_image, from + i * size, to + i * size, next - i);
    }
  });
}

}  // namespace neuron
