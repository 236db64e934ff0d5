// Matrix products with int8 weights, symmetric, one scale per output column. A weight is converted to the activations'
// dtype, which is exact, and summed as in linear.h, so batch invariance holds; the sum is scaled once, at the end.
#pragma once
#include <cmath>

#include "linear.h"

namespace linear {

constexpr float INT8_LARGEST = 127;
constexpr int64_t DIRECT_ROWS = 12;  // up to so many rows, weights are widened in registers, again for each row tile
constexpr int64_t WIDE_K = 512;      // K-panel that is widened once for all rows, if there are more

// Index of element `at` of a column in a packed weight: [panels][k / STEP] of PANEL * STEP bytes, in simd::place's order.
template <class T>
int64_t place(int64_t column, int64_t at, int64_t k) {
    constexpr int step = simd::STEP<T>, lanes = simd::LANES * simd::WIDENED<T>;
    const int64_t inside = column % PANEL, first = column - inside, group = inside / lanes;
    return first * k + at / step * (PANEL * step) + group * (lanes * step) +
           simd::place<T>(int(inside % lanes / simd::LANES), int(inside % simd::LANES), int(at % step));
}

// The largest magnitude in a row; not finite if one of its elements is not.
template <class T>
float magnitude(const T* row, int64_t k) {
    simd::Floats largest = simd::zero(), wrong = simd::zero();
    for (int64_t at = 0; at < k; at += simd::LANES) {
        const simd::Floats x = simd::load_first(row + at, int(std::min<int64_t>(simd::LANES, k - at)));
        wrong = simd::add(wrong, simd::sub(x, x));
        largest = simd::max(largest, simd::max(x, simd::sub(simd::zero(), x)));
    }
    return simd::largest(largest) + simd::sum(wrong);
}

// Quantises rows [first, first + count) of a weight, at `rows` [count, k], into `packed` (zeroed, indexed by place()) and
// scales [panels * PANEL]. weight = packed * scale with an error of at most scale / 2. A row with an element that is not
// finite gets zeros and a scale that is not finite.
template <class T>
void quantise(const T* rows, int64_t first, int64_t count, int64_t k, int8_t* packed, float* scales) {
    constexpr int step = simd::STEP<T>;
    const int64_t depth = (k + step - 1) / step * step, begin = first / PANEL, end = first + count;
    Pool::instance().run(panels(end) - begin, [=](int64_t task, int) {
        const int64_t panel = begin + task;
        for (int64_t column = std::max(first, panel * PANEL); column < std::min(end, (panel + 1) * PANEL); ++column) {
            const T* const row = rows + (column - first) * k;
            const float scale = scales[column] = magnitude(row, k) / INT8_LARGEST;
            if (!(scale > 0)) continue;
            for (int64_t from = 0; from < k; from += simd::LANES) {
                const int some = int(std::min<int64_t>(simd::LANES, k - from));
                const simd::Floats steps = simd::div(simd::load_first(row + from, some), simd::broadcast(scale));
                float rounded[simd::LANES];
                simd::store(rounded, simd::round(simd::max(simd::broadcast(-INT8_LARGEST),
                                                           simd::min(simd::broadcast(INT8_LARGEST), steps))));
                for (int i = 0; i < some; ++i) packed[place<T>(column, from + i, depth)] = int8_t(rounded[i]);
            }
        }
    });
}

// Dequantises rows `ids` of a weight: embedding lookup in a tied output head.
template <class T>
void dequantised_rows(const int8_t* packed, const float* scales, int64_t k, const int64_t* ids, int64_t count, T* out) {
    Pool::instance().run(count, [=](int64_t index, int) {
        for (int64_t at = 0; at < k; ++at)
            narrow(packed[place<T>(ids[index], at, k)] * scales[ids[index]], out + index * k + at);
    });
}

// Iterates over an int8 panel: each call loads and widens the operands of one K-step.
template <class T>
struct PackedInt8 {
    const int8_t* at;

    void operator()(Operand<T>* column) {
        constexpr int size = simd::LANES * simd::STEP<T> * simd::WIDENED<T>;
        for (int v = 0; v < simd::TILE_VECTORS; v += simd::WIDENED<T>, at += size) simd::widen_int8(at, column + v);
    }
};

// Iterates over operands that are already widened; prefetches from `ahead` the int8 weights to widen next.
template <class T>
struct Widened {
    const Operand<T>* at;
    const int8_t* ahead;

    Next next(int64_t length) const { return {ahead, length * PANEL, false}; }

    void operator()(Operand<T>* column) {
        constexpr int size = simd::LANES * simd::STEP<T> * simd::WIDENED<T>;
        for (int v = 0; v < simd::TILE_VECTORS; v += simd::WIDENED<T>, ahead += size) simd::prefetch(ahead);
        for (int v = 0; v < simd::TILE_VECTORS; ++v) column[v] = *at++;
    }
};

// panel_product() of linear.h with int8 weights; `out` multiplies each sum by its column's scale.
template <class T, class Rows, class Out>
void panel_product_int8(const Rows& x, int64_t rows, const int8_t* packed, int64_t k, const Out& out) {
    alignas(64) float sums[BLOCK_ROWS * PANEL];
    PackedInt8<T> weights{packed};
    if constexpr (!amx::MULTIPLIES<T>)
        if (rows <= DIRECT_ROWS) return rows_of<T>(x, rows, weights, k, Part{true, true}, sums, out);
    constexpr int step = simd::STEP<T>, vectors = simd::TILE_VECTORS;
    Operand<T> wide[WIDE_K / step * vectors];
    for (int64_t from = 0; from < k; from += WIDE_K) {
        const int64_t length = std::min(WIDE_K, k - from);
        for (int64_t at = 0; at < length / step; ++at) weights(wide + at * vectors);
        rows_of<T>(x.from(0, from), rows, Widened<T>{wide, weights.at}, length, Part{from == 0, from + length == k}, sums,
                   out);
    }
}

}  // namespace linear
