// From a weight's rows, as a checkpoint has them, to the panels that products read from end to end.
#pragma once
#include <algorithm>

#include "pool.h"

namespace linear {

constexpr int PANEL = simd::TILE_VECTORS * simd::LANES;  // columns that lie together in a packed weight

inline int64_t panels(int64_t columns) { return (columns + PANEL - 1) / PANEL; }

// Sixteen rows of [rows, k] become sixteen columns of a panel, [k / STEP][PANEL][STEP]. They are walked along together:
// so many streams the processor can fetch ahead, and all of a panel's would be too many.
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
    for (; at < k; ++at)  // half of a pair, whose other half is zero
        for (int64_t row = 0; row < count; ++row) {
            out[whole * PANEL + row * step] = rows[row * k + at];
            out[whole * PANEL + row * step + 1] = T{};
        }
}

// Rows [first, first + count) of a weight [n, k], at `rows` row-major, into the whole of it, packed:
// [panels][k / STEP, rounded up][PANEL][STEP], which is aligned to 64 bytes. What is beyond n and k is zeros.
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
