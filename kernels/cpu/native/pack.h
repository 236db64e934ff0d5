// Packs a row-major weight into panels of columns, which matrix products read sequentially.
#pragma once
#include <algorithm>

#include "pool.h"

namespace linear {

constexpr int PANEL = simd::TILE_VECTORS * simd::LANES;  // output columns per panel of a packed weight

inline int64_t panels(int64_t columns) { return (columns + PANEL - 1) / PANEL; }

// Writes up to sixteen rows of [rows, k] as columns of a panel, [k / STEP][PANEL][STEP]. Sixteen rows are read in
// parallel because the hardware prefetcher can follow that many streams, but not a whole panel's.
template <class T>
void pack_rows(const T* rows, int64_t count, int64_t k, T* out) {
    constexpr int step = simd::STEP<T>, lanes = simd::LANES;
    const int64_t whole = k / step * step;
    int64_t at = 0;
    if constexpr (sizeof(T) * step == sizeof(uint32_t)) {
        constexpr int square = lanes * step;
        if (count == lanes)
            for (; at + square <= k; at += square) simd::transpose(rows + at, k, out + at * PANEL, PANEL * step);
    }
    for (; at < whole; at += step)
        for (int64_t row = 0; row < count; ++row)
            std::memcpy(static_cast<void*>(out + at * PANEL + row * step), rows + row * k + at, step * sizeof(T));
    for (; at < k; ++at)  // odd k: the second element of the last pair is zero
        for (int64_t row = 0; row < count; ++row) {
            out[whole * PANEL + row * step] = rows[row * k + at];
            out[whole * PANEL + row * step + 1] = T{};
        }
}

// Packs rows [first, first + count) of a weight [n, k], row-major at `rows`, into `packed`, the whole weight:
// [panels][k / STEP, rounded up][PANEL][STEP], aligned to 64 bytes, zero-padded beyond n and k.
template <class T>
void pack(const T* rows, int64_t first, int64_t count, int64_t n, int64_t k, T* packed) {
    constexpr int step = simd::STEP<T>, lanes = simd::LANES;
    const int64_t depth = (k + step - 1) / step * step, begin = first / PANEL, end = first + count;
    Pool::instance().run(panels(end) - begin, [=](int64_t task, int) {
        const int64_t panel = begin + task, last = std::min(end, (panel + 1) * PANEL);
        T* const out = packed + panel * PANEL * depth;
        for (int64_t row = std::max(first, panel * PANEL); row < last;) {
            const int64_t together = std::min(last - row, lanes - row % lanes);
            pack_rows(rows + (row - first) * k, together, k, out + (row - panel * PANEL) * step);
            row += together;
        }
        if (last == n && n % PANEL != 0)
            for (int64_t at = 0; at < depth; at += step)
                std::memset(static_cast<void*>(out + at * PANEL + (n - panel * PANEL) * step), 0,
                            ((panel + 1) * PANEL - n) * step * sizeof(T));
        simd::drain();
    });
}

}  // namespace linear
