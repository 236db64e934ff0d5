// Soft caps: cap * tanh(x / cap), between -cap and cap (Gemma 2, arXiv 2408.00118). Twin: reference.soft_cap.
#pragma once
#include "rows.h"

namespace soft_cap {

inline simd::Floats capped(const simd::Floats& x, float cap) {
    return simd::mul(simd::tanh(simd::mul(x, simd::broadcast(1.0f / cap))), simd::broadcast(cap));
}

// x [rows, size], in place.
inline void apply(float* x, int64_t rows, int64_t size, float cap) {
    rows::each_row(rows, [=](int64_t row) {
        float* const own = x + row * size;
        rows::each_vector(size, [&](int64_t at, int count) {
            simd::store_first(own + at, capped(simd::load_first(own + at, count), cap), count);
        });
    });
}

}  // namespace soft_cap
