// SPDX-License-Identifier: Apache-2.0
#if defined(__x86_64__)
#include "attention_backward.h"

#include <algorithm>
#include <limits>

#include <c10/core/CPUAllocator.h>

#include "attention_gradient.h"
#include "attention_pack.h"
#include "attention_products.h"
#include "scratch.h"
#include "shared_loop.h"

// Scores are computed as their transpose, keys by queries: then weights and gradients of scores are left operands of
// the products that contract queries as they are, and log-sum-exp runs along vectors.
namespace neuron {
namespace {

constexpr int64_t kKeys = 256, kGranularity = 32;

template <typename T>
NEURON_INLINE float product(const T* x, const T* y, int64_t size) {
  float lanes[32] = {};
  int64_t i = 0;
  for (; i + 32 <= size; i += 32) {
    for (int64_t j = 0; j < 32; ++j) lanes[j] += load(x[i + j]) * load(y[i + j]);
  }
  float sum = 0;
  for (; i < size; ++i) sum += load(x[i]) * load(y[i]);
  for (float lane : lanes) sum += lane;
  return sum;
}
NEURON_VECTORIZED float dot(const float* x, const float* y, int64_t size) { return product(x, y, size); }
NEURON_VECTORIZED float dot(const BFloat16* x, const BFloat16* y, int64_t size) { return product(x, y, size); }

// The transpose (size, count) of packed keys as a plain matrix: those of float are one.
const float* unpaired(const float* packed, float*, int64_t, int64_t) { return packed; }
NEURON_VECTORIZED const BFloat16* unpaired(const BFloat16* packed, BFloat16* plain, int64_t count, int64_t size) {
  const auto* words = reinterpret_cast<const uint32_t*>(packed);
  for (int64_t i = 0; i < size; i += 2, words += count, plain += 2 * count) {
#pragma GCC ivdep
    for (int64_t j = 0; j < count; ++j) {
      plain[j].bits = static_cast<uint16_t>(words[j]);
      plain[count + j].bits = static_cast<uint16_t>(words[j] >> 16);
    }
  }
  return plain - size * count;
}

template <typename T, typename P>
class Backward {
 public:
  explicit Backward(const AttentionGradientOperands& operands)
      : x_(operands),
        group_(x_.heads / x_.key_heads),
        block_(round_up(divide_up(x_.keys, divide_up(x_.keys, kKeys)), kGranularity)),
        blocks_(divide_up(x_.keys, block_)),
        // Larger blocks multiply faster, smaller ones waste less where lengths are short or causal.
        queries_(x_.length > 512 ? 128 : 64),
        size_(round_up(x_.size, kSizeGranularity<P>)) {}

  void run() {
    const int64_t heads = x_.batch * x_.key_heads, bytes = Workspace(nullptr, *this).bytes();
    shared_loop(heads, 1, [&](int64_t begin, int64_t end) {
      const FreeTiles<P> tiles;
      const Scratch memory(bytes);
      const Workspace work(memory.data(), *this);
      for (int64_t head = begin; head < end; ++head) backward(head, work);
    });
  }

 private:
  // What a thread computes with.
  struct Workspace {
    Workspace(char* memory, const Backward& x) : begin(memory), next(memory) {
      const int64_t of_keys = x.blocks_ * x.block_ * x.size_, of_queries = x.queries_ * x.size_;
      for (P** place : {&key, &value, &transposed_key}) take(*place, of_keys, next);
      for (float** place : {&grad_key, &grad_value}) take(*place, of_keys, next);
      for (P** place : {&query, &grad, &transposed_query, &transposed_grad}) take(*place, of_queries, next);
      for (float** place : {&grad_query, &row_grad_query}) take(*place, of_queries, next);
      for (float** place : {&scores, &grad_weights}) take(*place, x.block_ * x.queries_, next);
      for (P** place : {&weights, &grad_scores, &paired}) take(*place, x.block_ * x.queries_, next);
      take(packed, x.block_ * x.size_, next);
      take(mask, x.x_.mask == nullptr ? 0 : x.block_ * x.queries_, next);
      take(logsumexp, x.queries_, next);
      take(along, x.queries_, next);
    }
    int64_t bytes() const { return next - begin; }

    P *key, *value, *transposed_key, *query, *grad, *transposed_query, *transposed_grad;
    P *weights, *grad_scores, *paired, *packed;
    float *grad_key, *grad_value, *grad_query, *row_grad_query, *scores, *grad_weights, *logsumexp, *along, *mask;

   private:
    char *begin, *next;
  };

  // head: of keys, of all batches.
  void backward(int64_t head, const Workspace& work) const {
    const int64_t stride = x_.key_heads * x_.size, batch = head / x_.key_heads, elements = block_ * size_;
    const int64_t offset = batch * x_.keys * stride + head % x_.key_heads * x_.size;
    for (int64_t block = 0; block < blocks_; ++block) {
      const int64_t first = block * block_, count = std::min(block_, x_.keys - first);
      const Rows keys{static_cast<const T*>(x_.key) + offset + first * stride, stride, count, x_.size};
      const Rows values{static_cast<const T*>(x_.value) + offset + first * stride, stride, count, x_.size};
      P* place = work.transposed_key + block * elements;
      if constexpr (std::is_same_v<P, float>) {
        Packing<T, P>::keys(keys, place, block_, size_);
      } else {
        Packing<T, P>::keys(keys, work.packed, block_, size_);
        unpaired(work.packed, place, block_, size_);
      }
      plain(keys, work.key + block * elements, block_);
      plain(values, work.value + block * elements, block_);
    }
    std::fill(work.grad_key, work.grad_key + blocks_ * elements, 0.0f);
    std::fill(work.grad_value, work.grad_value + blocks_ * elements, 0.0f);
    for (int64_t member = 0; member < group_; ++member) {
      const int64_t query_head = head % x_.key_heads * group_ + member;
      for (int64_t first = 0; first < x_.length; first += queries_) {
        step(batch, query_head, first, work);
      }
    }
    for (int64_t i = 0; i < x_.keys; ++i) {
      scale_row(work.grad_key + i * size_, x_.scale, static_cast<T*>(x_.grad_key) + offset + i * stride, x_.size);
      scale_row(work.grad_value + i * size_, 1, static_cast<T*>(x_.grad_value) + offset + i * stride, x_.size);
    }
  }

  void plain(const Rows& rows, P* place, int64_t padded_count) const {
    Packing<T, P>::queries(rows, place, size_, false);
    std::fill(place + rows.count * size_, place + padded_count * size_, P{});
  }

  // One block of queries of one head.
  void step(int64_t batch, int64_t head, int64_t first, const Workspace& work) const {
    const int64_t place = (batch * x_.length + first) * x_.heads + head;  // row of (batch, length, heads)
    const int64_t stride = x_.heads * x_.size, count = std::min(queries_, x_.length - first);
    const int64_t columns = round_up(count, kGranularity), elements = block_ * size_;
    const T *grad = static_cast<const T*>(x_.grad) + place * x_.size,
            *output = static_cast<const T*>(x_.output) + place * x_.size;
    const Rows queries{static_cast<const T*>(x_.query) + place * x_.size, stride, count, x_.size};
    const Rows grads{grad, stride, count, x_.size};
    Packing<T, P>::keys(queries, work.transposed_query, columns, size_);
    Packing<T, P>::keys(grads, work.transposed_grad, columns, size_);
    Packing<T, P>::values(queries, work.query, columns, size_);
    Packing<T, P>::values(grads, work.grad, columns, size_);
    for (int64_t i = 0; i < columns; ++i) {
      // Weights of the padding are exp(-inf).
      work.logsumexp[i] = i < count ? x_.logsumexp[place + i * x_.heads] : std::numeric_limits<float>::infinity();
      work.along[i] = i < count ? dot(grad + i * stride, output + i * stride, x_.size) : 0;
    }
    GradientBlock block{};
    block.scores = work.scores;
    block.grad_weights = work.grad_weights;
    block.queries = columns;
    block.causal = x_.causal;
    block.scale = x_.scale;
    block.logsumexp = work.logsumexp;
    block.along = work.along;
    const int64_t keys = x_.causal ? std::min(x_.keys, first + count) : x_.keys;
    for (int64_t i = 0; i * block_ < keys; ++i) {
      block.first_key = i * block_ - first;
      block.keys = std::min(block_, keys - i * block_);
      block.padded_keys = round_up(block.keys, kGranularity);
      const int64_t rows = block.padded_keys, at = i * elements;
      multiply(rows, columns, size_, size_, columns, columns, false, work.key + at, work.transposed_query, work.scores);
      multiply(rows, columns, size_, size_, columns, columns, false, work.value + at, work.transposed_grad,
               work.grad_weights);
      if (x_.mask != nullptr) {
        const int64_t* strides = x_.mask_strides;
        const T* mask = static_cast<const T*>(x_.mask) + batch * strides[0] + head * strides[1] + first * strides[2] +
                        i * block_ * strides[3];
        Packing<T, float>::keys(Rows{mask, strides[2], count, block.keys}, work.mask, columns, block.padded_keys);
        block.mask = work.mask;
      }
      score_gradients(block, work.weights, work.grad_scores, work.paired);
      multiply(rows, size_, columns, columns, size_, size_, true, work.weights, work.grad, work.grad_value + at);
      multiply(rows, size_, columns, columns, size_, size_, true, work.grad_scores, work.query, work.grad_key + at);
      const P* paired = std::is_same_v<P, float> ? work.grad_scores : work.paired;
      multiply(size_, columns, rows, block_, columns, columns, i > 0, work.transposed_key + at, paired,
               work.grad_query);
    }
    Packing<float, float>::keys(Rows{work.grad_query, columns, size_, columns}, work.row_grad_query, size_, columns);
    for (int64_t i = 0; i < count; ++i) {
      scale_row(work.row_grad_query + i * size_, x_.scale,
                static_cast<T*>(x_.grad_query) + place * x_.size + i * stride, x_.size);
    }
  }

  const AttentionGradientOperands& x_;
  const int64_t group_, block_, blocks_, queries_, size_;
};

}  // namespace

template <typename T, typename P>
void attention_backward(const AttentionGradientOperands& operands) {
  Backward<T, P>(operands).run();
}

template void attention_backward<float, float>(const AttentionGradientOperands&);
template void attention_backward<BFloat16, BFloat16>(const AttentionGradientOperands&);
template void attention_backward<BFloat16, float>(const AttentionGradientOperands&);

}  // namespace neuron

#endif  // defined(__x86_64__)
