// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "attention_operands.h"
#include "few_rows.h"
#include "shared_loop.h"
#include "vectorized.h"

// Attention of a token or some to a cache of keys and values, which lie head by head: query and output are (batch,
// heads, length, size), key and value (batch, key_heads, keys, size), logsumexp is (batch, heads, length). The rows of
// all heads that share a head of the cache are multiplied by it together, so that it is read once.
namespace neuron {
namespace {

// Elements of a cache that are worth a second thread's while.
constexpr int64_t kPiece = 16384;

struct Operands : AttentionInputs {
  void* output;
  float* logsumexp;
};

// scores += mask, of one row.
template <typename T>
NEURON_INLINE void add_mask(const Operands& x, int64_t batch, int64_t head_and_position, float* scores) {
  const int64_t stride = x.mask_strides[3];
  const T* mask = static_cast<const T*>(x.mask) + batch * x.mask_strides[0] +
                  head_and_position / x.length * x.mask_strides[1] + head_and_position % x.length * x.mask_strides[2];
  if (stride == 1) {
    for (int64_t i = 0; i < x.keys; ++i) scores[i] += load(mask[i]);
  } else {
    for (int64_t i = 0; i < x.keys; ++i) scores[i] += load(mask[i * stride]);
  }
}

// weights = exp(scores - the largest), in the order of `place_of`; total is their sum.
template <typename T>
NEURON_INLINE void softmax(const float* scores, int64_t keys, float* weights, float* total, float* logsumexp) {
  constexpr float kLowest = -std::numeric_limits<float>::infinity();
  const int64_t whole = keys / kStep * kStep;
  const auto larger = [](float x, float y) __attribute__((always_inline)) { return x > y ? x : y; };
  float lanes[kStep];
  std::fill(lanes, lanes + kStep, kLowest);
  for (int64_t i = 0; i < whole; i += kStep) {
    for (int64_t j = 0; j < kStep; ++j) lanes[j] = larger(scores[i + j], lanes[j]);
  }
  float largest = kLowest;
  for (float lane : lanes) largest = larger(lane, largest);
  for (int64_t i = whole; i < keys; ++i) largest = larger(scores[i], largest);
  // A row that sees no key is to become 0, not NaN.
  if (largest == kLowest) largest = 0;
  std::fill(lanes, lanes + kStep, 0.0f);
  for (int64_t i = 0; i < whole; i += kStep) {
    float found[kStep];
    for (int64_t j = 0; j < kStep; ++j) found[j] = exponential(scores[i + j] - largest);
    for (int64_t j = 0; j < kStep; ++j) lanes[j] += found[j];
    for (int64_t j = 0; j < kStep; ++j) weights[i + place_of<T>(j)] = found[j];
  }
  float sum = 0;
  for (float lane : lanes) sum += lane;
  for (int64_t i = whole; i < keys; ++i) {
    const float weight = exponential(scores[i] - largest);
    weights[place_of<T>(i)] = weight;
    sum += weight;
  }
  *total = sum == 0 ? 1.0f : sum;
  *logsumexp = std::log(*total) + largest;
}

// All rows by one head of the cache: by its keys, or with `transposed` off by its values.
template <typename T, bool transposed, int kRows>
NEURON_INLINE int64_t multiply_rows(const Product& product, int64_t row, int64_t rows) {
  for (; row + kRows <= rows; row += kRows) {
    if constexpr (transposed) {
      dots<T, float, kRows>(product, row, 0, product.columns);
    } else {
      strips<T, float, kRows>(product, row, 0, product.columns);
    }
  }
  return row;
}
template <typename T, bool transposed>
NEURON_INLINE void multiply(const float* x, const void* y, float* out, int64_t rows, int64_t inner, int64_t columns,
                            int64_t stride) {
  const Product product{x, y, nullptr, out, inner, columns, stride};
  multiply_rows<T, transposed, 1>(product, multiply_rows<T, transposed, 4>(product, 0, rows), rows);
}

template <typename T>
NEURON_INLINE void attend(const Operands& x, int64_t begin, int64_t end) {
  const int64_t group = x.heads / x.key_heads, rows = group * x.length;
  // Three rows of one vector or two cost as much as four.
  const int64_t padded_rows = rows % 4 == 3 ? rows + 1 : rows;
  const int64_t query_stride = round_up(x.size, kStep), weight_stride = round_up(x.keys, kStep);
  std::vector<float> queries(padded_rows * query_stride), scores(padded_rows * x.keys),
      weights(padded_rows * weight_stride), outputs(padded_rows * x.size), totals(rows);
  for (int64_t unit = begin; unit < end; ++unit) {
    const T* query = static_cast<const T*>(x.query) + unit * rows * x.size;
    const T* key = static_cast<const T*>(x.key) + unit * x.keys * x.size;
    const T* value = static_cast<const T*>(x.value) + unit * x.keys * x.size;
    T* output = static_cast<T*>(x.output) + unit * rows * x.size;
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t i = 0; i < x.size; ++i) {
        queries[row * query_stride + place_of<T>(i)] = load(query[row * x.size + i]) * x.scale;
      }
    }
    multiply<T, true>(queries.data(), key, scores.data(), padded_rows, x.size, x.keys, query_stride);
    for (int64_t row = 0; row < rows; ++row) {
      float* found = scores.data() + row * x.keys;
      if (x.mask != nullptr) add_mask<T>(x, unit / x.key_heads, unit % x.key_heads * rows + row, found);
      softmax<T>(found, x.keys, weights.data() + row * weight_stride, &totals[row], x.logsumexp + unit * rows + row);
    }
    multiply<T, false>(weights.data(), value, outputs.data(), padded_rows, x.keys, x.size, weight_stride);
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t i = 0; i < x.size; ++i) {
        store(output + row * x.size + i, outputs[row * x.size + i] / totals[row]);
      }
    }
  }
}

NEURON_VECTORIZED void attend_f32(const Operands& x, int64_t begin, int64_t end) { attend<float>(x, begin, end); }
NEURON_VECTORIZED void attend_bf16(const Operands& x, int64_t begin, int64_t end) { attend<BFloat16>(x, begin, end); }

}  // namespace

void attention_few_queries(const KernelCall& call) {
  const int32_t type = call.input_buffer(0).element_type;
  Operands x{attention_inputs(call, kHeadsThenLength, 0, 3)};
  x.output = call.output_buffer(0).data;
  x.logsumexp = static_cast<float*>(call.output_buffer(1).data);
  const bool is_f32 = type == NEURONCORE_TYPE_F32;
  TORCH_CHECK(is_f32 || type == NEURONCORE_TYPE_BF16, "expected f32 or bf16, got element type ", type);
  const int64_t piece = std::max<int64_t>(1, kPiece / (x.keys * x.size));
  shared_loop(x.batch * x.key_heads, piece,
              [&](int64_t begin, int64_t end) { (is_f32 ? attend_f32 : attend_bf16)(x, begin, end); });
}

}  // namespace neuron
