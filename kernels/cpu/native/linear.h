// Matrix products with packed weights. Batch invariance: each output element is one chain of float multiply-adds along
// K, in order, whatever the tile. Rows and columns are divided among tiles and threads; K never is.
#pragma once
#include <algorithm>

#include "pack.h"
#include "pool.h"

#if defined(__AMX_BF16__) || defined(TANDEM_EMULATE_TILES)
#include "linear_amx.h"
#else
namespace amx {
constexpr const char* NAME = simd::NAME;
template <class T>
constexpr bool MULTIPLIES = false;
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
constexpr int64_t BLOCK_ROWS = 192;

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

// Iterates over a panel: each call loads the operands of one K-step.
template <class T>
struct Packed {
    const T* at;

    // What follows `length` elements, and so is read next.
    const void* next(int64_t length) const { return at + length * PANEL; }
    static constexpr int64_t BYTES = sizeof(T);  // of a weight

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

// sums [rows][PANEL] += x [rows, length] times `length` elements of a panel. `first`: = in place of +=.
template <class T, class Weights>
void rows_of(const T* x, int64_t x_stride, int64_t rows, Weights weights, int64_t length, bool first, float* sums) {
    if constexpr (amx::MULTIPLIES<T>) {
        amx::rows_of(x, x_stride, rows, reinterpret_cast<const T*>(weights.at), length, first, sums,
                     weights.next(length), length * PANEL * Weights::BYTES);
    } else {
        for (int64_t row = 0; row < rows; row += simd::TILE_ROWS)
            tile_of<simd::TILE_ROWS>(std::min<int64_t>(simd::TILE_ROWS, rows - row), x + row * x_stride, x_stride,
                                     weights, length, first, sums + row * PANEL);
    }
}

// out = sums + bias, `columns` elements of a panel's row; bias may be null.
template <class Out>
void store_row(const float* sums, const float* bias, int64_t columns, Out* out) {
    for (int64_t at = 0; at < columns; at += simd::LANES) {
        const int count = int(std::min<int64_t>(simd::LANES, columns - at));
        simd::Floats sum = simd::load(sums + at);
        if (bias != nullptr) sum = simd::add(sum, simd::load_first(bias + at, count));
        simd::store_first(out + at, sum, count);
    }
}

// The part of a bias [n] for a panel; null if there is none.
inline const float* bias_of(const float* bias, int64_t panel) { return bias == nullptr ? bias : bias + panel * PANEL; }

// One panel of out [rows, n] = x [rows, k] @ weight [n, k].T + bias [n], the weight packed, for at most BLOCK_ROWS rows;
// bias may be null. Strides in elements.
template <class T, class Out>
void panel_product(const T* x, int64_t x_stride, int64_t rows, const T* packed, const float* bias, int64_t n, int64_t k,
                   int64_t panel, Out* out, int64_t out_stride) {
    alignas(64) float sums[(BLOCK_ROWS + simd::TILE_ROWS) * PANEL];
    for (int64_t from = 0; from < k; from += BLOCK_K) {
        const int64_t length = std::min(BLOCK_K, k - from);
        rows_of(x + from, x_stride, rows, Packed<T>{packed + (panel * k + from) * PANEL}, length, from == 0, sums);
    }
    for (int64_t row = 0; row < rows; ++row)
        store_row(sums + row * PANEL, bias_of(bias, panel), std::min<int64_t>(PANEL, n - panel * PANEL),
                  out + row * out_stride + panel * PANEL);
}

}  // namespace linear
