// SPDX-License-Identifier: Apache-2.0
#include "matmul_fma.h"

#if defined(__x86_64__)

#include <algorithm>
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
// Inner elements of a block: a panel of columns stays in the first-level cache.
constexpr int64_t kDepth = 192;
// Rows of a block, in panels: they stay in the second-level cache while the columns' panels take turns.
constexpr int64_t kBlockRows = 32;
// Columns of a block, in panels.
constexpr int64_t kBlockColumns = 4;
// Elements of x that are packed at once.
constexpr int64_t kMostPacked = 8 << 20;

typedef float Floats8 __attribute__((vector_size(32), aligned(4), may_alias));
typedef float Floats16 __attribute__((vector_size(64), aligned(4), may_alias));
typedef uint16_t Halves __attribute__((vector_size(16), aligned(2), may_alias));

NEURON_INLINE Words load_words(const float* from) { return *reinterpret_cast<const Words*>(from); }
NEURON_INLINE Words load_words(const BFloat16* from) {
  return __builtin_convertvector(*reinterpret_cast<const Halves*>(from), Words) << 16;
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

// sums (kPanelRows, panel of columns) = x (inner, kPanelRows) transposed @ y (inner, panel of columns), plus sums if
// `add`; so many rows at once as there are registers for.
template <typename Vector, int kRows>
NEURON_INLINE void multiply_panels(const float* x, const float* y, int64_t inner, bool add, float* sums) {
  constexpr int64_t kLanes = sizeof(Vector) / sizeof(float), kWidth = kVectors * kLanes;
  for (int64_t row = 0; row < kPanelRows; row += kRows) {
    auto* place = reinterpret_cast<Vector*>(sums + row * kWidth);
    Vector total[kRows][kVectors] = {};
    if (add) {
#pragma GCC unroll 32
      for (int i = 0; i < kRows * kVectors; ++i) total[i / kVectors][i % kVectors] = place[i];
    }
    for (int64_t i = 0; i < inner; ++i) {
      Vector factors[kVectors];
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) factors[v] = *reinterpret_cast<const Vector*>(y + i * kWidth + v * kLanes);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        const float factor = x[i * kPanelRows + row + r];
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) total[r][v] += factor * factors[v];
      }
    }
#pragma GCC unroll 32
    for (int i = 0; i < kRows * kVectors; ++i) place[i] = total[i / kVectors][i % kVectors];
  }
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
  void (*round)(const float* sums, const T* bias, int64_t columns, T* out);
};

#define NEURON_LOOPS(level, target_level, Vector, rows)                                                                \
  __attribute__((target(target_level))) void multiply_##level(const float* x, const float* y, int64_t inner, bool add, \
                                                              float* sums) {                                           \
    multiply_panels<Vector, rows>(x, y, inner, add, sums);                                                             \
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
  constexpr Loops<T> loops_##level{kVectors * sizeof(Vector) / sizeof(float), &pack_##level<T>, &multiply_##level,     \
                                   &round_##level<T>};
NEURON_LOOPS(v3, "arch=x86-64-v3", Floats8, 4)
NEURON_LOOPS(v4, "arch=x86-64-v4", Floats16, 8)

template <typename T>
const Loops<T>& loops_of_processor() {
  return has_avx512() ? loops_v4<T> : loops_v3<T>;
}

template <typename T>
class Work {
 public:
  explicit Work(const MatrixProduct<T>& product) : p_(product), loops_(loops_of_processor<T>()) {}

  void run() {
    const int64_t panel = p_.inner * kPanelRows, panels = divide_up(p_.rows, kPanelRows);
    const int64_t most = std::clamp<int64_t>(kMostPacked / panel, 1, panels);
    const Scratch packed(most * panel * static_cast<int64_t>(sizeof(float)));
    auto* rows = reinterpret_cast<float*>(packed.data());
    for (int64_t begin = 0; begin < panels; begin += most) {
      const Range some{begin, std::min(begin + most, panels)};
      shared_loop(some.size(), 1, [&](int64_t first, int64_t last) {
        for (int64_t i = first; i < last; ++i) pack_rows(some.begin + i, rows + i * panel);
      });
      multiply_rows(some, rows);
    }
  }

 private:
  void pack_rows(int64_t panel, float* to) const {
    const int64_t row = panel * kPanelRows;
    loops_.pack(p_.x.rows_from(row), std::min(kPanelRows, p_.rows - row), p_.inner, kPanelRows, to);
  }

  void pack_columns(int64_t panel, int64_t inner, int64_t depth, float* to) const {
    const int64_t column = panel * loops_.width;
    loops_.pack(p_.y.columns_from(inner, column), std::min(loops_.width, p_.columns - column), depth, loops_.width, to);
  }

  void multiply_rows(Range rows, const float* x) {
    const int64_t threads = at::get_num_threads();
    const Range columns{0, divide_up(p_.columns, loops_.width)};
    // Rows are divided too where there are too few columns for all threads.
    const int64_t across = divide_up(columns.size(), std::min(kBlockColumns, divide_up(columns.size(), threads)));
    const int64_t down = std::min(divide_up(threads, across), rows.size());
    shared_loop(across * down, 1, [&](int64_t first, int64_t last) {
      for (int64_t i = first; i < last; ++i) {
        multiply_block(share_of(rows, i / across, down), share_of(columns, i % across, across),
                       x - rows.begin * kPanelRows * p_.inner);
      }
    });
  }

  void multiply_block(Range rows, Range columns, const float* x) {
    const int64_t depth = divide_up(p_.inner, divide_up(p_.inner, kDepth));
    const int64_t tile = kPanelRows * loops_.width, panel = depth * loops_.width;
    const Scratch scratch((columns.size() * panel + rows.size() * columns.size() * tile) *
                          static_cast<int64_t>(sizeof(float)));
    auto* const y = reinterpret_cast<float*>(scratch.data());
    float* const sums = y + columns.size() * panel;
    for (int64_t inner = 0; inner < p_.inner; inner += depth) {
      const int64_t count = std::min(depth, p_.inner - inner);
      for (int64_t c = 0; c < columns.size(); ++c) pack_columns(columns.begin + c, inner, count, y + c * panel);
      for (int64_t begin = 0; begin < rows.size(); begin += kBlockRows) {
        for (int64_t c = 0; c < columns.size(); ++c) {
          for (int64_t r = begin; r < std::min(begin + kBlockRows, rows.size()); ++r) {
            loops_.multiply(x + ((rows.begin + r) * p_.inner + inner) * kPanelRows, y + c * panel, count, inner > 0,
                            sums + (r * columns.size() + c) * tile);
          }
        }
      }
    }
    for (int64_t r = 0; r < rows.size(); ++r) {
      for (int64_t c = 0; c < columns.size(); ++c) {
        round_tile(sums + (r * columns.size() + c) * tile, rows.begin + r, columns.begin + c);
      }
    }
  }

  void round_tile(const float* sums, int64_t row_panel, int64_t column_panel) const {
    const int64_t row = row_panel * kPanelRows, column = column_panel * loops_.width;
    const T* bias = p_.bias == nullptr ? nullptr : p_.bias + column;
    for (int64_t r = 0; r < std::min(kPanelRows, p_.rows - row); ++r) {
      loops_.round(sums + r * loops_.width, bias, std::min(loops_.width, p_.columns - column),
                   p_.out + (row + r) * p_.columns + column);
    }
  }

  const MatrixProduct<T>& p_;
  const Loops<T>& loops_;
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
