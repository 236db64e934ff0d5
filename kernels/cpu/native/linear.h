// Matrix products with packed weights. Batch invariance: each output element is one chain of float multiply-adds along
// K, in order, whatever the tile. Rows and columns are divided among tiles and threads; K never is.
#pragma once
#include <algorithm>

#include "pack.h"
#include "pool.h"
#include "rows.h"

#if defined(__AMX_BF16__) || defined(TANDEM_EMULATE_TILES)
#include "linear_amx.h"
#else
namespace amx {
constexpr const char* NAME = simd::NAME;
template <class T>
constexpr bool MULTIPLIES = false;
constexpr int64_t STEP = 1;
struct Tiled;
template <class... Any>
Tiled tile_rows(Any...) = delete;
template <class... Any>
void rows_of(Any...) = delete;
inline bool fits(int64_t) { return false; }
inline void end_attention() {}
template <class... Any>
void score(Any...) = delete;
template <class... Any>
void mix(Any...) = delete;
}  // namespace amx
#endif

namespace linear {

constexpr int64_t BLOCK_K = 2048;  // K-panel that stays in the cache for all rows of a task
constexpr int64_t BLOCK_ROWS = 256;

using rows::RowMajor;

// A part of K: sums begin at 0 in the first one, and are complete after the last one.
struct Part {
    bool first, last;
};

// Unpacks rows `ids` of a packed weight: embedding lookup in a tied output head.
template <class T>
void unpack_rows(const T* packed, int64_t k, const int64_t* ids, int64_t count, T* out) {
    constexpr int step = simd::STEP<T>;
    Pool::instance().run(count, [=](int64_t index, int) {
        const T* from = packed + ids[index] / PANEL * PANEL * k + ids[index] % PANEL * step;
        T* const to = out + index * k;
        for (int64_t at = 0; at < k; at += step)
            for (int part = 0; part < step; ++part) to[at + part] = from[at * PANEL + part];
    });
}

// The vector type of sixteen columns in a product with T.
template <class T>
using Operand = decltype(simd::columns(static_cast<const T*>(nullptr)));

// What is read from memory after a part of a panel. `follows_memory`: that part is read from memory, too, not from a cache.
struct Next {
    const void* at;
    int64_t bytes;
    bool follows_memory;
};

// Iterates over a panel: each call loads the operands of one K-step. `after`: what is read after it; null: what follows it.
template <class T>
struct Packed {
    const T* at;
    const void* after;

    Next next(int64_t length) const {
        return {after == nullptr ? at + length * PANEL : after, length * PANEL * int64_t(sizeof(T)), true};
    }

    void operator()(Operand<T>* column) {
        constexpr int size = simd::LANES * simd::STEP<T>;
        for (int v = 0; v < simd::TILE_VECTORS; ++v, at += size) column[v] = simd::columns(at);
    }
};

// sums [ROWS][PANEL] += x [ROWS, k] times `k` elements of a panel; `weights` iterates over them. `first`: = in place of +=.
template <int ROWS, class T, class Weights>
void tile(const T* x, int64_t x_stride, Weights weights, int64_t k, bool first, float* sums) {
    constexpr int step = simd::STEP<T>, vectors = simd::TILE_VECTORS;
    simd::Floats sum[ROWS][vectors];
    for (int row = 0; row < ROWS; ++row)
        for (int v = 0; v < vectors; ++v)
            sum[row][v] = first ? simd::zero() : simd::load(sums + row * PANEL + v * simd::LANES);
    for (int64_t at = 0; at < k; at += step) {
        Operand<T> column[vectors];
        weights(column);
        for (int row = 0; row < ROWS; ++row) {
            const auto element = simd::element(x + row * x_stride + at);
            for (int v = 0; v < vectors; ++v) sum[row][v] = simd::mac(sum[row][v], element, column[v]);
        }
    }
    for (int row = 0; row < ROWS; ++row)
        for (int v = 0; v < vectors; ++v) simd::store(sums + row * PANEL + v * simd::LANES, sum[row][v]);
}

// `tile` for `rows` in [1, ROWS].
template <int ROWS, class T, class Weights>
void tile_of(int64_t rows, const T* x, int64_t x_stride, Weights weights, int64_t k, bool first, float* sums) {
    if constexpr (ROWS > 1)
        if (rows < ROWS) return tile_of<ROWS - 1>(rows, x, x_stride, weights, k, first, sums);
    tile<ROWS>(x, x_stride, weights, k, first, sums);
}

// A panel's columns of an output. Rows are `stride` elements apart; scales and bias [PANEL] may be null.
template <class Out>
struct PanelOf {
    Out* out;
    int64_t stride, columns;
    const float *scales, *bias;

    // Panel `panel` of n columns, of which the first is at `out`; scales and bias [n].
    static PanelOf at(int64_t panel, int64_t n, const float* scales, const float* bias, Out* out, int64_t stride) {
        const auto part_of = [=](const float* all) { return all == nullptr ? all : all + panel * PANEL; };
        return {out, stride, std::min<int64_t>(PANEL, n - panel * PANEL), part_of(scales), part_of(bias)};
    }

    // Fetches the rows [first, last) into the cache, to which store() writes soon.
    void fetch(int64_t first, int64_t last) const {
        for (const Out* row = out + first * stride; first < last; ++first, row += stride) {
            simd::prefetch(row);
            simd::prefetch(row + PANEL - 1);
        }
    }

    // Rows [first, last) = their sums [..][PANEL], times the scales, plus the bias.
    void store(int64_t first, int64_t last, const float* sums) const {
        if (scales == nullptr && bias == nullptr)
            return store_each(first, last, sums, [](const simd::Floats& sum, int64_t) { return sum; });
        store_each(first, last, sums, [this](simd::Floats sum, int64_t at) {
            if (scales != nullptr) sum = simd::mul(sum, simd::load(scales + at));
            const int count = int(std::min<int64_t>(simd::LANES, columns - at));
            return bias == nullptr ? sum : simd::add(sum, simd::load_first(bias + at, count));
        });
    }

    template <class F>
    void store_each(int64_t first, int64_t last, const float* sums, F value) const {
        for (Out* row = out + first * stride; first < last; ++first, row += stride, sums += PANEL)
            if (columns == PANEL)
                for (int64_t at = 0; at < PANEL; at += simd::LANES) simd::store(row + at, value(simd::load(sums + at), at));
            else
                rows::each_vector(columns, [=](int64_t at, int count) {
                    simd::store_first(row + at, value(simd::load(sums + at), at), count);
                });
    }
};

// sums [rows][PANEL] += x [rows, length] times `length` elements of a panel. Those of the last part go to `out` a tile at a
// time, while they are in the first cache.
template <class T, class Rows, class Weights, class Out>
void rows_of(const Rows& x, int64_t rows, Weights weights, int64_t length, Part part, float* sums, const Out& out) {
    if constexpr (amx::MULTIPLIES<T>) {
        amx::rows_of(x, rows, reinterpret_cast<const T*>(weights.at), length, part, sums, weights.next(length), out);
    } else {
        for (int64_t row = 0; row < rows; row += simd::TILE_ROWS) {
            const int64_t count = std::min<int64_t>(simd::TILE_ROWS, rows - row);
            tile_of<simd::TILE_ROWS>(count, x.from(row, 0).at, x.stride, weights, length, part.first, sums + row * PANEL);
            if (part.last) out.store(row, row + count, sums + row * PANEL);
        }
    }
}

// A panel of `out` = x [rows, k] times `k` elements of packed weights, for at most BLOCK_ROWS rows; x is RowMajor or amx::Tiled.
// `after`: as Packed's.
template <class T, class Rows, class Out>
void panel_product(const Rows& x, int64_t rows, const T* packed, int64_t k, const Out& out, const void* after) {
    alignas(64) float sums[BLOCK_ROWS * PANEL];
    for (int64_t from = 0; from < k; from += BLOCK_K) {
        const int64_t length = std::min(BLOCK_K, k - from);
        const Part part{from == 0, from + length == k};
        const Packed<T> weights{packed + from * PANEL, part.last ? after : nullptr};
        rows_of<T>(x.from(0, from), rows, weights, length, part, sums, out);
    }
}

}  // namespace linear
