// SPDX-License-Identifier: Apache-2.0
#include "matmul_f32_amx.h"

#if defined(__x86_64__)

#include <algorithm>
#include <atomic>
#include <mutex>
#include <new>

#include <ATen/Parallel.h>

#include "float_parts.h"
#include "rounding.h"
#include "scratch.h"
#include "shared_loop.h"

namespace neuron {
namespace {

constexpr int64_t kSumsBytes = 4 * kTileBytes;  // 32 lines by 32
// Inner elements of a block, in steps: the parts of 32 lines fill the first-level cache.
constexpr int64_t kBlockSteps = 8;
// Columns of a block, in panels: their parts and their sums for kBlockRows leave room in the second-level cache.
constexpr int64_t kBlockColumns = 8;
constexpr int64_t kBlockRows = 40;
// All parts of x that are made at once.
constexpr int64_t kMostPacked = 32 << 20;
// A tile's store takes 0.25 microseconds if there was none for 0.6: measured on Sapphire Rapids.
constexpr int64_t kStepsBetweenStores = 4;

int64_t panels_of(int64_t count) { return divide_up(count, kPanel); }

// What is fetched meanwhile: `count` runs of `lines` cache lines.
struct Ahead {
  const float* from;
  int64_t stride, count, lines;
};

NEURON_AMX_INLINE void load_left(const char* left, int part) {
  _tile_loadd(4, left + part * kPartBytes, kLineBytes);
  _tile_loadd(5, left + part * kPartBytes + kTileBytes, kLineBytes);
}
NEURON_AMX_INLINE void load_right(const char* right, int part) {
  _tile_loadd(6, right + part * kPartBytes, kLineBytes);
  _tile_loadd(7, right + part * kPartBytes + kTileBytes, kLineBytes);
}
NEURON_AMX_INLINE void multiply_tiles() {
  _tile_dpbf16ps(0, 4, 6);
  _tile_dpbf16ps(1, 4, 7);
  _tile_dpbf16ps(2, 5, 6);
  _tile_dpbf16ps(3, 5, 7);
}

// sums = left @ right, plus sums if `add`. Small products go first.
NEURON_AMX void multiply(const char* left, const char* right, int64_t steps, bool add, char* sums, const Ahead& ahead) {
  constexpr int kHigh = 0, kMiddle = 1, kLow = 2;
  if (add) {
    _tile_loadd(0, sums, kLineBytes);
    _tile_loadd(1, sums + kTileBytes, kLineBytes);
    _tile_loadd(2, sums + 2 * kTileBytes, kLineBytes);
    _tile_loadd(3, sums + 3 * kTileBytes, kLineBytes);
  } else {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }
  constexpr int64_t kLineFloats = kLineBytes / static_cast<int64_t>(sizeof(float));
  const int64_t width = divide_up(ahead.lines, steps) * kLineFloats;
  const float* next = ahead.from;
  alignas(64) char unused[kLineBytes];
  for (int64_t step = 0; step < steps; ++step) {
    load_left(left, kHigh);
    load_right(right, kLow);
    multiply_tiles();
    for (int64_t i = 0; i < ahead.count; ++i) {
      for (int64_t j = 0; j < width; j += kLineFloats) _mm_prefetch(next + i * ahead.stride + j, _MM_HINT_T1);
    }
    next += width;
    load_right(right, kMiddle);
    multiply_tiles();
    load_left(left, kMiddle);
    multiply_tiles();
    load_right(right, kHigh);
    multiply_tiles();
    load_left(left, kLow);
    multiply_tiles();
    load_left(left, kHigh);
    multiply_tiles();
    left += kPartsStepBytes;
    right += kPartsStepBytes;
    if (step % kStepsBetweenStores == kStepsBetweenStores - 1 && step + 1 < steps) _tile_stored(7, unused, 0);
  }
  _tile_stored(0, sums, kLineBytes);
  _tile_stored(1, sums + kTileBytes, kLineBytes);
  _tile_stored(2, sums + 2 * kTileBytes, kLineBytes);
  _tile_stored(3, sums + 3 * kTileBytes, kLineBytes);
}

// A product in work. y is packed where it is needed, as the operand whose tiles take no transposition: the left one if
// its columns lie whole, and then the sums are those of the transposed result.
class Work {
 public:
  explicit Work(const MatrixProduct<float>& product)
      : p_(product), steps_(divide_up(product.inner, kPartsStep)), transposed_(product.y.row_stride == 1) {}

  bool run() {
    const Range columns{0, panels_of(p_.columns)};
    const int64_t threads = at::get_num_threads(), panel_bytes = steps_ * kPartsStepBytes;
    const int64_t panels = panels_of(p_.rows), most = std::clamp<int64_t>(kMostPacked / panel_bytes, 1, panels);
    const Scratch packed(most * panel_bytes);
    for (int64_t begin = 0; begin < panels && suits_; begin += most) {
      const Range rows{begin, std::min(begin + most, panels)};
      packed_rows_ = {packed.data(), rows.begin, panel_bytes};
      shared_loop(rows.size(), 1,
                  [&](int64_t first, int64_t last) { pack_rows(rows.begin + first, rows.begin + last); });
      // All threads have as many panels, or rows are divided too.
      const int64_t rounds = divide_up(columns.size(), threads * kBlockColumns);
      const int64_t across = std::min(columns.size(), threads * rounds);
      const int64_t down = std::min(divide_up(threads, across), rows.size());
      shared_loop(across * down, 1, [&](int64_t first, int64_t last) {
        for (int64_t i = first; i < last; ++i) {
          multiply_or_give_up(share_of(rows, i / across, down), share_of(columns, i % across, across));
        }
      });
    }
    return suits_;
  }

 private:
  void pack_rows(int64_t first, int64_t last) {
    Magnitudes magnitudes;
    for (int64_t panel = first; panel < last; ++panel) {
      const int64_t row = panel * kPanel;
      const auto pack = transposed_ ? &pack_right : &pack_left;
      pack(p_.x.rows_from(row), std::min(kPanel, p_.rows - row), p_.inner, packed_rows_.panel(panel), &magnitudes);
    }
    const std::lock_guard lock(mutex_);
    row_magnitudes_.add(magnitudes);
  }

  // Does not throw: with too little memory left the product is the caller's.
  void multiply_or_give_up(Range rows, Range columns) {
    try {
      multiply_block(rows, columns);
    } catch (const std::bad_alloc&) {
      suits_ = false;
    }
  }

  NEURON_AMX void multiply_block(Range rows, Range columns) {
    const int64_t block = divide_up(steps_, divide_up(steps_, kBlockSteps));
    const int64_t height = divide_up(rows.size(), divide_up(rows.size(), kBlockRows));
    const Scratch scratch(columns.size() * (block * kPartsStepBytes + height * kSumsBytes));
    char* const right = scratch.data();
    const Tiles tiles;
    __m512i most = _mm512_setzero_si512();
    for (int64_t begin = rows.begin; begin < rows.end; begin += height) {
      const Range some{begin, std::min(begin + height, rows.end)};
      for (int64_t step = 0; step < steps_ && suits_; step += block) {
        const int64_t count = std::min(block, steps_ - step);
        pack_columns(columns, step, count, right);
        const bool is_last = step + count == steps_;
        // The same columns' next steps; then from the first step on for further rows, or the next columns.
        Ahead ahead = is_last ? upcoming(some.end < rows.end ? columns.begin : columns.end, columns.size(), 0, block)
                              : upcoming(columns.begin, columns.size(), step + count, block);
        int64_t runs = ahead.count;
        const int64_t runs_each = divide_up(runs, some.size() * columns.size());
        char* sums = right + columns.size() * block * kPartsStepBytes;
        Place before{};
        for (int64_t row = some.begin; row < some.end; ++row) {
          const char* x = packed_rows_.panel(row) + step * kPartsStepBytes;
          for (int64_t column = columns.begin; column < columns.end; ++column, sums += kSumsBytes) {
            const char* y = right + (column - columns.begin) * count * kPartsStepBytes;
            ahead.count = std::min(runs_each, runs);
            if (is_last) fetch_result(row, column);
            multiply(transposed_ ? y : x, transposed_ ? x : y, count, step > 0, sums, ahead);
            runs -= ahead.count;
            ahead.from += ahead.count * ahead.stride;
            // While the tiles still multiply.
            if (before.sums != nullptr) finish(before, &most);
            if (is_last) before = {sums, row * kPanel, column * kPanel};
          }
        }
        if (is_last) finish(before, &most);
      }
    }
    // A sum that is too large for float32 may be one of parts only.
    if (_mm512_reduce_max_epi32(most) >= kInfinity) suits_ = false;
  }

  void pack_columns(Range columns, int64_t step, int64_t steps, char* to) {
    Magnitudes magnitudes;
    const int64_t inner = step * kPartsStep, count = std::min(steps * kPartsStep, p_.inner - inner);
    for (int64_t panel = columns.begin; panel < columns.end; ++panel, to += steps * kPartsStepBytes) {
      const int64_t column = panel * kPanel;
      const auto pack = transposed_ ? &pack_left : &pack_right;
      pack(p_.y.columns_from(inner, column), std::min(kPanel, p_.columns - column), count, to, &magnitudes);
    }
    if (!magnitudes.suit(row_magnitudes_)) suits_ = false;
  }

  // All runs of y's elements from a panel of columns and a step on.
  Ahead upcoming(int64_t panel, int64_t panels, int64_t step, int64_t steps) const {
    const int64_t column = panel * kPanel, inner = step * kPartsStep;
    const int64_t width = std::min(panels * kPanel, p_.columns - column);
    const int64_t depth = std::min(steps * kPartsStep, p_.inner - inner);
    if (width <= 0) return {p_.y.data, 0, 0, 0};
    const Lines<float> lines = p_.y.columns_from(inner, column);
    return {lines.data, lines.stride, transposed_ ? width : depth, (transposed_ ? depth : width) / kTileLines};
  }

  struct Place {
    char* sums;
    int64_t row, column;
  };

  float* result(int64_t row, int64_t column) const { return p_.out + row * p_.columns + column; }

  NEURON_AMX void fetch_result(int64_t row_panel, int64_t column_panel) const {
    const int64_t row = row_panel * kPanel, column = column_panel * kPanel;
    for (int64_t i = row; i < std::min(row + kPanel, p_.rows); ++i) {
      __builtin_prefetch(result(i, column), 1);
      __builtin_prefetch(result(i, column) + kTileLines, 1);
    }
  }

  // Writes sums to the result, and notes the largest magnitude.
  NEURON_AMX void finish(const Place& place, __m512i* most) const {
    const int64_t rows = std::min(kPanel, p_.rows - place.row);
    for (int64_t half = 0; half < 2; ++half) {
      const int64_t column = place.column + half * kTileLines, columns = p_.columns - column;
      if (columns <= 0) break;
      const auto mask = static_cast<__mmask16>(columns >= kTileLines ? 0xFFFF : (1 << columns) - 1);
      const __m512 bias = p_.bias == nullptr ? _mm512_setzero_ps() : _mm512_maskz_loadu_ps(mask, p_.bias + column);
      for (int64_t first = 0; first < rows; first += kTileLines) {
        const int64_t tile = transposed_ ? 2 * half + first / kTileLines : first / kTileLines * 2 + half;
        __m512i lines[kTileLines];
#pragma GCC unroll 16
        for (int i = 0; i < kTileLines; ++i)
          lines[i] = _mm512_load_si512(place.sums + tile * kTileBytes + i * kLineBytes);
        if (transposed_) transpose_lines(lines);
        for (int64_t i = 0; i < std::min(kTileLines, rows - first); ++i) {
          const __m512 sum = _mm512_add_ps(_mm512_castsi512_ps(lines[i]), bias);
          const __m512i magnitude = _mm512_and_si512(_mm512_castps_si512(sum), _mm512_set1_epi32(0x7FFFFFFF));
          *most = _mm512_mask_max_epi32(*most, mask, *most, magnitude);
          _mm512_mask_storeu_ps(result(place.row + first + i, column), mask, sum);
        }
      }
    }
  }

  struct PackedRows {
    char* data;
    int64_t first_panel, panel_bytes;
    char* panel(int64_t index) const { return data + (index - first_panel) * panel_bytes; }
  };

  static constexpr int32_t kInfinity = 0x7F800000;
  const MatrixProduct<float>& p_;
  const int64_t steps_;
  const bool transposed_;
  PackedRows packed_rows_{};
  std::mutex mutex_;
  Magnitudes row_magnitudes_;
  std::atomic<bool> suits_{true};
};

}  // namespace

bool matmul_f32_amx(const MatrixProduct<float>& product) { return Work(product).run(); }

}  // namespace neuron

#else

namespace neuron {

bool matmul_f32_amx(const MatrixProduct<float>&) { return false; }

}  // namespace neuron

#endif  // defined(__x86_64__)
