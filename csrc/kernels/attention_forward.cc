// SPDX-License-Identifier: Apache-2.0
#if defined(__x86_64__)
#include "attention_forward.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <type_traits>
#include <vector>

#include <ATen/Parallel.h>
#include <c10/core/CPUAllocator.h>

#include "attention_pack.h"
#include "attention_products.h"
#include "attention_softmax.h"
#include "scratch.h"
#include "shared_loop.h"

namespace neuron {
namespace {

// Compares bits, all of a row: a loop of integers becomes vector code, one of floating-point comparisons does not.
template <typename Bits, typename T>
NEURON_INLINE bool all_hidden(const T* mask, int64_t count) {
  T lowest;
  store(&lowest, -std::numeric_limits<float>::infinity());
  Bits difference = 0;
  for (int64_t i = 0; i < count; ++i) difference |= std::bit_cast<Bits>(mask[i]) ^ std::bit_cast<Bits>(lowest);
  return difference == 0;
}
NEURON_VECTORIZED bool row_hidden(const float* mask, int64_t count) { return all_hidden<uint32_t>(mask, count); }
NEURON_VECTORIZED bool row_hidden(const BFloat16* mask, int64_t count) { return all_hidden<uint16_t>(mask, count); }

// Rows whose scores against kKeys keys stay in the first cache on their way to become weights; and rows that share one
// pass over the keys and values.
template <typename P>
constexpr int64_t kRows = std::is_same_v<P, float> ? 64 : 32;
constexpr int64_t kUnit = 128, kKeys = 256;
// Few shapes of products: oneDNN generates code for each, in each thread.
constexpr int64_t kRowGranularity = kScoreRows, kKeyGranularity = kScoreColumns;

// What a thread computes with.
template <typename P>
struct Workspace {
  Workspace(char* memory, int64_t key_block, int64_t size) : next(memory) {
    take(query, kUnit * size, next);
    take(output, kUnit * size, next);
    take(scores, kRows<P> * key_block, next);
    take(weights, kRows<P> * key_block, next);
    take(largest, kUnit, next);
    take(total, kUnit, next);
  }
  static int64_t bytes(int64_t key_block, int64_t size) {
    const Workspace nowhere(nullptr, key_block, size);
    return nowhere.next - static_cast<char*>(nullptr);
  }

  P *query, *weights;
  float *output, *scores, *largest, *total;
  char* next;
};

template <typename T, typename P>
class Forward {
 public:
  explicit Forward(const AttentionOperands& operands)
      : x_(operands),
        group_(x_.heads / x_.key_heads),
        key_block_(round_up(divide_up(x_.keys, divide_up(x_.keys, kKeys)), kKeyGranularity)),
        key_blocks_(divide_up(x_.keys, key_block_)),
        size_(round_up(x_.size, kSizeGranularity<P>)) {}

  void run() {
    const int64_t threads = at::get_num_threads(), heads = x_.batch * x_.key_heads;
    while (unit_ > kRows<P> && heads * group_ * divide_up(x_.length, unit_) < 4 * threads) unit_ /= 2;
    const int64_t units = divide_up(x_.length, unit_), count = heads * group_ * units;
    // A thread packs the keys and values of the heads it works on, which stay in its cache; unless there are so few
    // heads that threads share them. What is used once is packed block by block, in one place.
    const bool once = group_ * units == 1, shared = !once && heads < threads;
    const int64_t work_bytes = Workspace<P>::bytes(key_block_, size_);
    const int64_t packed_bytes = (once ? 1 : key_blocks_) * block_elements() * sizeof(P);
    const int64_t thread_bytes = work_bytes + (shared ? 0 : packed_bytes);
    c10::Allocator& allocator = *c10::GetCPUAllocator();
    const c10::DataPtr shared_memory = allocator.allocate(shared ? heads * packed_bytes : 0);
    const auto shared_place = [&](int64_t head) {
      return reinterpret_cast<P*>(static_cast<char*>(shared_memory.get()) + head * packed_bytes);
    };
    if (shared) {
      shared_loop(heads * key_blocks_, 1, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          const int64_t head = i / key_blocks_, block = i % key_blocks_;
          pack(head, block, shared_place(head) + block * block_elements());
        }
      });
    }
    // Of keys and values that a thread packs for itself, pieces use a good part.
    shared_loop(count, shared ? 1 : divide_up(group_ * units, 2), [&](int64_t begin, int64_t end) {
      const Scratch memory(thread_bytes);
      const FreeTiles<P> tiles;
      const Workspace<P> work(memory.data(), key_block_, size_);
      int64_t packed_head = -1;
      for (int64_t i = begin; i < end; ++i) {
        const int64_t head = i / (group_ * units), member = i / units % group_, order = i % units;
        P* packed = shared ? shared_place(head) : reinterpret_cast<P*>(work.next);
        if (!shared && !once && head != packed_head) {
          for (int64_t block = 0; block < key_blocks_; ++block) pack(head, block, packed + block * block_elements());
          packed_head = head;
        }
        // Causal rows see the more keys the later they are: neighbouring units are an early and a late one.
        const int64_t unit = order % 2 == 0 ? order / 2 : units - 1 - order / 2;
        attend(head, member, unit * unit_, packed, once, work);
      }
    });
  }

 private:
  // Of one block of packed keys, and of the values after them.
  int64_t block_elements() const { return 2 * key_block_ * size_; }

  // head: of all batches.
  void pack(int64_t head, int64_t block, P* packed) const {
    const int64_t first = block * key_block_, stride = x_.key_heads * x_.size;
    const int64_t offset = (head / x_.key_heads * x_.keys + first) * stride + head % x_.key_heads * x_.size;
    const int64_t count = std::min(key_block_, x_.keys - first);
    const Rows keys{static_cast<const T*>(x_.key) + offset, stride, count, x_.size};
    const Rows values{static_cast<const T*>(x_.value) + offset, stride, count, x_.size};
    Packing<T, P>::keys(keys, packed, key_block_, size_);
    Packing<T, P>::values(values, packed + key_block_ * size_, key_block_, size_);
  }

  // One unit of rows of one query head. packed: all blocks; or room for one, into which each is packed now.
  void attend(int64_t key_head, int64_t member, int64_t first_row, P* packed, bool pack_now,
              const Workspace<P>& work) const {
    const int64_t batch = key_head / x_.key_heads, head = key_head % x_.key_heads * group_ + member;
    const int64_t count = std::min(unit_, x_.length - first_row),
                  place = (batch * x_.length + first_row) * x_.heads + head;
    const Rows queries{static_cast<const T*>(x_.query) + place * x_.size, x_.heads * x_.size, count, x_.size};
    Packing<T, P>::queries(queries, work.query, size_, x_.scale < 0);
    std::fill(work.query + count * size_, work.query + round_up(count, kRowGranularity) * size_, P{});
    std::fill(work.largest, work.largest + kUnit, -std::numeric_limits<float>::infinity());
    std::fill(work.total, work.total + kUnit, 0.0f);
    bool started[kUnit / kRows<P>] = {};
    const int64_t keys = x_.causal ? std::min(x_.keys, first_row + count) : x_.keys;
    for (int64_t block = 0; block * key_block_ < keys; ++block) {
      if (pack_now) pack(key_head, block, packed);
      const P* packed_block = packed + (pack_now ? 0 : block) * block_elements();
      for (int64_t row = 0; row < count; row += kRows<P>) {
        const int64_t rows = std::min(kRows<P>, count - row);
        const T* mask = mask_at(batch, head, first_row + row, block * key_block_);
        bool& begun = started[row / kRows<P>];
        begun |= step(first_row + row, rows, row, block, mask, begun, packed_block, work);
      }
    }
    for (int64_t row = 0; row < count; ++row) {
      float* sums = work.output + row * size_;
      if (!started[row / kRows<P>]) std::fill(sums, sums + x_.size, 0.0f);
      const float total = work.total[row] == 0 ? 1 : work.total[row];  // of a row without a visible key
      const float largest = std::isinf(work.largest[row]) && work.largest[row] < 0 ? 0 : work.largest[row];
      const int64_t out = place + row * x_.heads;
      scale_row(sums, 1 / total, static_cast<T*>(x_.output) + out * x_.size, x_.size);
      x_.logsumexp[out] = largest * (x_.mask == nullptr ? std::fabs(x_.scale) : 1.0f) + std::log(total);
    }
  }

  const T* mask_at(int64_t batch, int64_t head, int64_t row, int64_t key) const {
    if (x_.mask == nullptr) return nullptr;
    const int64_t* strides = x_.mask_strides;
    return static_cast<const T*>(x_.mask) + batch * strides[0] + head * strides[1] + row * strides[2] +
           key * strides[3];
  }

  bool hidden(const T* mask, int64_t rows, int64_t keys) const {
    for (int64_t row = 0; row < (x_.mask_strides[2] == 0 ? 1 : rows); ++row) {
      if (!row_hidden(mask + row * x_.mask_strides[2], x_.mask_strides[3] == 0 ? 1 : keys)) return false;
    }
    return true;
  }

  // Rows of a unit, from `place` in its workspace, against one block of keys. False if none is visible.
  bool step(int64_t first_row, int64_t rows, int64_t place, int64_t block, const T* mask, bool begun, const P* packed,
            const Workspace<P>& work) const {
    const int64_t first_key = block * key_block_, available = std::min(key_block_, x_.keys - first_key);
    const int64_t limit = x_.causal ? std::min(available, first_row + rows - first_key) : available;
    if (limit <= 0 || (mask != nullptr && hidden(mask, rows, limit))) return false;
    const int64_t padded_rows = round_up(rows, kRowGranularity), columns = round_up(limit, kKeyGranularity);
    float* output = work.output + place * size_;
    multiply(padded_rows, columns, size_, size_, key_block_, key_block_, /*add=*/false, work.query + place * size_,
             packed, work.scores);
    ScoreBlock scores;
    scores.scores = work.scores;
    scores.rows = rows;
    scores.columns = columns;
    scores.stride = key_block_;
    scores.limit = limit;
    scores.visible = x_.causal ? first_row - first_key + 1 : limit;
    scores.step = x_.causal;
    scores.scale = std::fabs(x_.scale);
    scores.mask = mask;
    scores.mask_is_bfloat16 = std::is_same_v<T, BFloat16>;
    scores.mask_row_stride = x_.mask_strides[2];
    scores.mask_column_stride = x_.mask_strides[3];
    scores.largest = work.largest + place;
    scores.total = work.total + place;
    scores.output = begun ? output : nullptr;
    scores.output_size = scores.output_stride = size_;
    softmax(scores, work.weights);
    multiply(padded_rows, size_, columns, key_block_, size_, size_, begun, work.weights, packed + key_block_ * size_,
             output);
    return true;
  }

  const AttentionOperands& x_;
  const int64_t group_, key_block_, key_blocks_, size_;
  int64_t unit_ = kUnit;  // rows
};

}  // namespace

template <typename T, typename P>
void attention_forward(const AttentionOperands& operands) {
  Forward<T, P>(operands).run();
}

template void attention_forward<float, float>(const AttentionOperands&);
template void attention_forward<BFloat16, BFloat16>(const AttentionOperands&);
template void attention_forward<BFloat16, float>(const AttentionOperands&);

}  // namespace neuron

#endif  // defined(__x86_64__)
