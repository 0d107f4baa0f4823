// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "kernel_call.h"

// What the attention kernels take: see torch_neuronx/lowering/families/attention.py.
namespace neuron {

// heads is a multiple of key_heads.
struct AttentionInputs {
  const void *query, *key, *value;
  int64_t batch, length, heads, key_heads, keys, size;
  // Added to the scores, of the element type of the query, or null; the strides of (batch, heads, length, keys) may
  // be 0.
  const void* mask;
  int64_t mask_strides[4];
  float scale;
};

// Where the lengths and the heads stand among the four dimensions of query, key and value.
struct AttentionLayout {
  int length, heads;
};
constexpr AttentionLayout kLengthThenHeads{1, 2}, kHeadsThenLength{2, 1};

// first: number of the call's input that is the query; key and value follow. mask: number of the last input, which may
// be missing.
inline AttentionInputs attention_inputs(const KernelCall& call, AttentionLayout layout, size_t first, size_t mask) {
  const neuroncore_buffer_t &query = call.input_buffer(first), &key = call.input_buffer(first + 1);
  AttentionInputs x{};
  x.query = query.data;
  x.key = key.data;
  x.value = call.input_buffer(first + 2).data;
  x.batch = query.dims[0];
  x.length = query.dims[layout.length];
  x.heads = query.dims[layout.heads];
  x.size = query.dims[3];
  x.keys = key.dims[layout.length];
  x.key_heads = key.dims[layout.heads];
  x.scale = static_cast<float>(call.number("scale"));
  if (mask < call.num_inputs()) {
    const neuroncore_buffer_t& added = call.input_buffer(mask);
    x.mask = added.data;
    for (int64_t d = 3, stride = 1; d >= 0; stride *= added.dims[d--]) {
      x.mask_strides[d] = added.dims[d] == 1 ? 0 : stride;
    }
  }
  return x;
}

}  // namespace neuron
