// SPDX-License-Identifier: Apache-2.0
#include "matmul_fma.h"

#if defined(__x86_64__)

#include <algorithm>
#include <bit>
#include <cstring>

#include <ATen/Parallel.h>

#include "processor.h"
#include "rounding.h"
#include "scratch.h"
#include "shared_loop.h"
#include "transpose.h"

namespace neuron {
namespace {

constexpr int64_t kPanelRows = 8;  // rows of x that are packed together
constexpr int64_t kVectors = 3;    // vectors of a panel of columns
// Inner elements of a block: so many that loading and storing sums costs little. A panel of columns comes from the
// second-level cache as fast as it is used.
constexpr int64_t kDepth = 352;
// How many inner elements ahead a panel of rows is fetched, the next one's too: it comes from the second-level cache,
// and each is read once only.
constexpr int64_t kAhead = 48;
// Rows of a block, in panels: they stay in the second-level cache while the columns' panels take turns.
constexpr int64_t kBlockRows = 32;
// Columns of a block.
constexpr int64_t kBlockColumns = 192;
// Pieces of work for each thread, and rows, in panels, which columns are worth packing for.
constexpr int64_t kShares = 4, kFewRows = 8;
// Elements of x that are packed at once.
constexpr int64_t kMostPacked = 8 << 20;

// Vectors of a processor. (An attribute that depends on a template's parameter is lost.)
struct Vectors8 {
  typedef float Floats __attribute__((vector_size(32), aligned(4), may_alias));
  typedef uint32_t Words __attribute__((vector_size(32)));
  typedef uint16_t Halves __attribute__((vector_size(16), aligned(2), may_alias));
};
struct Vectors16 {
  typedef float Floats __attribute__((vector_size(64), aligned(4), may_alias));
  typedef uint32_t Words __attribute__((vector_size(64)));
  typedef uint16_t Halves __attribute__((vector_size(32), aligned(2), may_alias));
};
template <class V>
constexpr int64_t kLanes = sizeof(typename V::Words) / sizeof(uint32_t);

NEURON_INLINE Words load_words(const float* from) { return *reinterpret_cast<const Words*>(from); }
NEURON_INLINE Words load_words(const BFloat16* from) {
  return __builtin_convertvector(*reinterpret_cast<const Vectors8::Halves*>(from), Words) << 16;
}

// `count` lines of `inner` elements as (inner, width), zeros beyond the last line.
template <typename T>
NEURON_INLINE void pack_lines(const Lines<T>& lines, int64_t count, int64_t inner, int64_t width, float* to) {
  if (!lines.whole) {
    for (int64_t i = 0; i < inner; ++i, to += width) {
      const T* from = lines.data + i * lines.stride;
      for (int64_t line = 0; line < count; ++line) to[line] = load(from[line]);
      std::fill(to + count, to + width, 0.0f);
    }
    return;
  }
  for (int64_t first = 0; first < width; first += kWordTile) {
    for (int64_t i = 0; i < inner; i += kWordTile) {
      const int64_t depth = std::min(kWordTile, inner - i);
      Words tile[kWordTile];
      for (int64_t line = 0; line < kWordTile; ++line) {
        const T* from = lines.data + (first + line) * lines.stride + i;
        if (first + line >= count) {
          tile[line] = Words{};
        } else if (depth == kWordTile) {
          tile[line] = load_words(from);
        } else {
          T some[kWordTile] = {};
          std::memcpy(some, from, depth * sizeof(T));
          tile[line] = load_words(some);
        }
      }
      transpose(tile);
      for (int64_t j = 0; j < depth; ++j) std::memcpy(to + (i + j) * width + first, &tile[j], sizeof(Words));
    }
  }
}

template <class V>
NEURON_INLINE typename V::Floats load_vector(const float* from) {
  return *reinterpret_cast<const typename V::Floats*>(from);
}
template <class V>
NEURON_INLINE typename V::Floats load_vector(const BFloat16* from) {
  const auto halves = *reinterpret_cast<const typename V::Halves*>(from);
  return std::bit_cast<typename V::Floats>(__builtin_convertvector(halves, typename V::Words) << 16);
}

template <class V>
NEURON_INLINE void store_vector(float* to, typename V::Floats x) {
  *reinterpret_cast<typename V::Floats*>(to) = x;
}
// As `store` of an element.
template <class V>
NEURON_INLINE void store_vector(BFloat16* to, typename V::Floats x) {
  const auto bits = std::bit_cast<typename V::Words>(x);
  const typename V::Words rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16, nan = rounded * 0 + 0x7FC0;
  *reinterpret_cast<typename V::Halves*>(to) = __builtin_convertvector(x != x ? nan : rounded, typename V::Halves);
}

// x (inner, kPanelRows) transposed @ y (inner, panel of columns), plus `sums` (kPanelRows, panel of columns) if `add`;
// so many rows at once as there are registers for. Calls take(row, number of the vector in the row, vector).
template <class V, int kRows, class Take>
NEURON_INLINE void multiply_panels(const float* x, const float* y, int64_t inner, bool add, const float* sums,
                                   Take take) {
  using Floats = typename V::Floats;
  constexpr int64_t kWidth = kVectors * kLanes<V>;
  for (int64_t row = 0; row < kPanelRows; row += kRows) {
    Floats total[kRows][kVectors] = {};
    if (add) {
#pragma GCC unroll 32
      for (int i = 0; i < kRows * kVectors; ++i) {
        total[i / kVectors][i % kVectors] = load_vector<V>(sums + row * kWidth + i * kLanes<V>);
      }
    }
    for (int64_t i = 0; i < inner; ++i) {
      Floats factors[kVectors];
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) factors[v] = load_vector<V>(y + i * kWidth + v * kLanes<V>);
      __builtin_prefetch(x + (i + kAhead) * kPanelRows);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        const float factor = x[i * kPanelRows + row + r];
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) total[r][v] += factor * factors[v];
      }
    }
#pragma GCC unroll 32
    for (int i = 0; i < kRows * kVectors; ++i)
      take(row + i / kVectors, i % kVectors, total[i / kVectors][i % kVectors]);
  }
}

template <class V, int kRows>
NEURON_INLINE void multiply_into_sums(const float* x, const float* y, int64_t inner, bool add, float* sums) {
  const auto keep = [&](int64_t row, int64_t v, typename V::Floats total) __attribute__((always_inline)) {
    store_vector<V>(sums + (row * kVectors + v) * kLanes<V>, total);
  };
  multiply_panels<V, kRows>(x, y, inner, add, sums, keep);
}

// The last inner elements: rounds sums plus bias into rows of `out`, `stride` apart.
template <class V, int kRows, typename T>
NEURON_INLINE void multiply_into_result(const float* x, const float* y, int64_t inner, bool add, const float* sums,
                                        const T* bias, T* out, int64_t stride) {
  const auto round = [&](int64_t row, int64_t v, typename V::Floats total) __attribute__((always_inline)) {
    if (bias != nullptr) total += load_vector<V>(bias + v * kLanes<V>);
    store_vector<V>(out + row * stride + v * kLanes<V>, total);
  };
  multiply_panels<V, kRows>(x, y, inner, add, sums, round);
}

// Rounds `columns` sums of a row into the result.
template <typename T>
NEURON_INLINE void round_row(const float* sums, const T* bias, int64_t columns, T* out) {
  if (bias == nullptr) {
    for (int64_t i = 0; i < columns; ++i) store(&out[i], sums[i]);
  } else {
    for (int64_t i = 0; i < columns; ++i) store(&out[i], sums[i] + load(bias[i]));
  }
}

template <typename T>
struct Loops {
  int64_t width;  // columns of a panel
  void (*pack)(const Lines<T>& lines, int64_t count, int64_t inner, int64_t width, float* to);
  void (*multiply)(const float* x, const float* y, int64_t inner, bool add, float* sums);
  void (*finish)(const float* x, const float* y, int64_t inner, bool add, const float* sums, const T* bias, T* out,
                 int64_t stride);
  void (*round)(const float* sums, const T* bias, int64_t columns, T* out);
};

#define NEURON_LOOPS(level, target_level, V, rows)                                                                     \
  __attribute__((target(target_level))) void multiply_##level(const float* x, const float* y, int64_t inner, bool add, \
                                                              float* sums) {                                           \
    multiply_into_sums<V, rows>(x, y, inner, add, sums);                                                               \
  }                                                                                                                    \
  template <typename T>                                                                                                \
  __attribute__((target(target_level))) void finish_##level(const float* x, const float* y, int64_t inner, bool add,   \
                                                            const float* sums, const T* bias, T* out,                  \
                                                            int64_t stride) {                                          \
    multiply_into_result<V, rows>(x, y, inner, add, sums, bias, out, stride);                                          \
  }                                                                                                                    \
  template <typename T>                                                                                                \
  __attribute__((target(target_level))) void pack_##level(const Lines<T>& lines, int64_t count, int64_t inner,         \
                                                          int64_t width, float* to) {                                  \
    pack_lines(lines, count, inner, width, to);                                                                        \
  }                                                                                                                    \
  template <typename T>                                                                                                \
  __attribute__((target(target_level))) void round_##level(const float* sums, const T* bias, int64_t columns,          \
                                                           T* out) {                                                   \
    round_row(sums, bias, columns, out);                                                                               \
  }                                                                                                                    \
  template <typename T>                                                                                                \
  constexpr Loops<T> loops_##level{kVectors * kLanes<V>, &pack_##level<T>, &multiply_##level, &finish_##level<T>,      \
                                   &round_##level<T>};
NEURON_LOOPS(v3, "arch=x86-64-v3", Vectors8, 4)
NEURON_LOOPS(v4, "arch=x86-64-v4", Vectors16, 8)

template <typename T>
const Loops<T>& loops_of_processor() {
  return has_avx512() ? loops_v4<T> : loops_v3<T>;
}

// Rows of x in panels, block of inner elements by block: one block's panels lie one after the other, since at equal
// large distances they would push each other out of the cache.
struct PackedRows {
  float* data;
  Range panels;

  // Where `count` inner elements, a whole block from `inner` on, of a panel are.
  float* at(int64_t panel, int64_t inner, int64_t count) const {
    return data + (inner * panels.size() + (panel - panels.begin) * count) * kPanelRows;
  }
};

template <typename T>
class Work {
 public:
  explicit Work(const MatrixProduct<T>& product)
      : p_(product),
        loops_(loops_of_processor<T>()),
        depth_(divide_up(product.inner, divide_up(product.inner, kDepth))) {}

  void run() {
    const int64_t panel = p_.inner * kPanelRows, panels = divide_up(p_.rows, kPanelRows);
    const int64_t most = std::clamp<int64_t>(kMostPacked / panel, 1, panels);
    const Scratch packed(most * panel * static_cast<int64_t>(sizeof(float)));
    for (int64_t begin = 0; begin < panels; begin += most) {
      const PackedRows x{reinterpret_cast<float*>(packed.data()), Range{begin, std::min(begin + most, panels)}};
      shared_loop(x.panels.size(), 1, [&](int64_t first, int64_t last) {
        for (int64_t i = first; i < last; ++i) pack_rows(begin + i, x);
      });
      multiply_rows(x);
    }
  }

 private:
  void pack_rows(int64_t panel, const PackedRows& x) const {
    const int64_t row = panel * kPanelRows;
    for (int64_t inner = 0; inner < p_.inner; inner += depth_) {
      const int64_t count = std::min(depth_, p_.inner - inner);
      loops_.pack(p_.x.rows_from(row, inner), std::min(kPanelRows, p_.rows - row), count, kPanelRows,
                  x.at(panel, inner, count));
    }
  }

  void pack_columns(int64_t panel, int64_t inner, int64_t depth, float* to) const {
    const int64_t column = panel * loops_.width;
    loops_.pack(p_.y.columns_from(inner, column), std::min(loops_.width, p_.columns - column), depth, loops_.width, to);
  }

  void multiply_rows(const PackedRows& x) const {
    const int64_t columns = divide_up(p_.columns, loops_.width);
    // Rows are divided too where there are too few columns for threads to end together.
    const int64_t down =
        std::min(divide_up(kShares * at::get_num_threads(), columns), divide_up(x.panels.size(), kFewRows));
    shared_loop(columns * down, 1, [&](int64_t first, int64_t last) {
      for (int64_t column, count; first < last; first += count) {
        column = first % columns;
        count = std::min({last - first, columns - column, kBlockColumns / loops_.width});
        multiply_block(share_of(x.panels, first / columns, down), Range{column, column + count}, x);
      }
    });
  }

  void multiply_block(Range rows, Range columns, const PackedRows& x) const {
    const int64_t tile = kPanelRows * loops_.width, panel = depth_ * loops_.width;
    const Scratch scratch((columns.size() * panel + rows.size() * columns.size() * tile) *
                          static_cast<int64_t>(sizeof(float)));
    auto* const y = reinterpret_cast<float*>(scratch.data());
    float* const sums = y + columns.size() * panel;
    for (int64_t inner = 0; inner < p_.inner; inner += depth_) {
      const int64_t count = std::min(depth_, p_.inner - inner);
      for (int64_t c = 0; c < columns.size(); ++c) pack_columns(columns.begin + c, inner, count, y + c * panel);
      for (int64_t begin = 0; begin < rows.size(); begin += kBlockRows) {
        for (int64_t c = 0; c < columns.size(); ++c) {
          for (int64_t r = begin; r < std::min(begin + kBlockRows, rows.size()); ++r) {
            multiply_tile(rows.begin + r, columns.begin + c, inner, count, x, y + c * panel,
                          sums + (r * columns.size() + c) * tile);
          }
        }
      }
    }
  }

  // Adds to the sums of a tile; the last inner elements make them its result.
  void multiply_tile(int64_t row_panel, int64_t column_panel, int64_t inner, int64_t count, const PackedRows& x,
                     const float* y, float* sums) const {
    const int64_t row = row_panel * kPanelRows, column = column_panel * loops_.width;
    const int64_t rows = std::min(kPanelRows, p_.rows - row), columns = std::min(loops_.width, p_.columns - column);
    const bool last = inner + count == p_.inner, whole = rows == kPanelRows && columns == loops_.width;
    const T* bias = p_.bias == nullptr ? nullptr : p_.bias + column;
    T* out = p_.out + row * p_.columns + column;
    const float* factors = x.at(row_panel, inner, count);
    if (last && whole) {
      loops_.finish(factors, y, count, inner > 0, sums, bias, out, p_.columns);
      return;
    }
    loops_.multiply(factors, y, count, inner > 0, sums);
    for (int64_t r = 0; last && r < rows; ++r) {
      loops_.round(sums + r * loops_.width, bias, columns, out + r * p_.columns);
    }
  }

  const MatrixProduct<T>& p_;
  const Loops<T>& loops_;
  const int64_t depth_;  // inner elements of a block
};

}  // namespace

void matmul_fma(const MatrixProduct<float>& product) { Work<float>(product).run(); }
void matmul_fma(const MatrixProduct<BFloat16>& product) { Work<BFloat16>(product).run(); }

}  // namespace neuron

#else

namespace neuron {

void matmul_fma(const MatrixProduct<float>&) {}
void matmul_fma(const MatrixProduct<BFloat16>&) {}

}  // namespace neuron

#endif  // defined(__x86_64__)
