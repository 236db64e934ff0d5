// What works on one row at a time: norms, rotary embedding with the write of keys and values, gated activation.
#pragma once
#include <cmath>

#include "cache.h"
#include "pool.h"

namespace pointwise {

constexpr int64_t ROWS_PER_TASK = 8;

template <class F>
void each_row(int64_t rows, F&& work) {
    Pool::instance().run((rows + ROWS_PER_TASK - 1) / ROWS_PER_TASK, [&](int64_t task, int) {
        for (int64_t row = task * ROWS_PER_TASK; row < std::min(rows, (task + 1) * ROWS_PER_TASK); ++row) work(row);
    });
}

// 1 / root of the mean square of `size` floats.
inline float inverse_rms(const float* x, int64_t size, float eps) {
    simd::Floats squares = simd::zero();
    for (int64_t at = 0; at < size; at += simd::LANES) {
        const simd::Floats part = simd::load_first(x + at, int(std::min<int64_t>(simd::LANES, size - at)));
        squares = simd::fma(part, part, squares);
    }
    return 1.0f / std::sqrt(simd::sum(squares) / float(size) + eps);
}

// out = norm of x, or of x + residual, which goes to `total` (rounded first) where there is one. All [rows, size].
template <class T>
void rms_norm(const T* x, int64_t x_stride, const T* residual, const T* weight, float eps, int64_t rows, int64_t size,
              T* out, T* total) {
    each_row(rows, [=](int64_t row) {
        thread_local std::vector<float> wide;
        wide.resize(size);
        for (int64_t i = 0; i < size; ++i) wide[i] = widen(x[row * x_stride + i]);
        if (residual != nullptr)
            for (int64_t i = 0; i < size; ++i) {
                narrow(wide[i] + widen(residual[row * size + i]), total + row * size + i);
                wide[i] = widen(total[row * size + i]);
            }
        const float scale = inverse_rms(wide.data(), size, eps);
        for (int64_t i = 0; i < size; ++i) narrow(wide[i] * scale * widen(weight[i]), out + row * size + i);
    });
}

// silu(gate) * up, of gate_up [rows, 2 * size] -> out [rows, size].
template <class T>
void silu_mul(const T* gate_up, int64_t rows, int64_t size, T* out) {
    each_row(rows, [=](int64_t row) {
        const T *gate = gate_up + row * 2 * size, *up = gate + size;
        const simd::Floats one = simd::broadcast(1.0f);
        for (int64_t at = 0; at < size; at += simd::LANES) {
            const int count = int(std::min<int64_t>(simd::LANES, size - at));
            const simd::Floats g = simd::load_first(gate + at, count), u = simd::load_first(up + at, count);
            const simd::Floats sigmoid = simd::div(one, simd::add(one, simd::exp(simd::sub(simd::zero(), g))));
            simd::store_first(out + row * size + at, simd::mul(simd::mul(g, sigmoid), u), count);
        }
    });
}

// One head of one token: norm (where `weight` is given), then rotary embedding in the half-split form; in float.
template <class T>
void norm_rope(const T* x, const T* weight, float eps, const float* cos_sin, int64_t head_dim, float* out) {
    const int64_t half = head_dim / 2;
    for (int64_t i = 0; i < head_dim; ++i) out[i] = widen(x[i]);
    if (weight != nullptr) {
        const float scale = inverse_rms(out, head_dim, eps);
        for (int64_t i = 0; i < head_dim; ++i) out[i] = out[i] * scale * widen(weight[i]);
    }
    const float *cos = cos_sin, *sin = cos_sin + half;
    for (int64_t i = 0; i < half; ++i) {
        const float first = out[i], second = out[i + half];
        out[i] = first * cos[i] - second * sin[i];
        out[i + half] = second * cos[i] + first * sin[i];
    }
}

// qkv [tokens, heads + 2 * kv_heads, head_dim]: queries go to `query` [tokens, heads, head_dim], keys and values to
// their places in the cache.
template <class T>
void rope_and_write(const T* qkv, int64_t tokens, int64_t heads, const T* query_norm, const T* key_norm, float eps,
                    const float* cos_sin, const int64_t* positions, const int64_t* slots, Cache<T> cache, T* query) {
    const int64_t dim = cache.head_dim;
    each_row(tokens, [=](int64_t token) {
        thread_local std::vector<float> head;
        head.resize(dim);
        const T* from = qkv + token * (heads + 2 * cache.kv_heads) * dim;
        const float* angles = cos_sin + positions[token] * dim;
        for (int64_t index = 0; index < heads; ++index, from += dim) {
            norm_rope(from, query_norm, eps, angles, dim, head.data());
            T* out = query + (token * heads + index) * dim;
            for (int64_t i = 0; i < dim; ++i) narrow(head[i], out + i);
        }
        for (int64_t index = 0; index < cache.kv_heads; ++index, from += dim) {
            norm_rope(from, key_norm, eps, angles, dim, head.data());
            for (int64_t i = 0; i < dim; ++i) narrow(head[i], cache.key(slots[token], index, i));
        }
        for (int64_t index = 0; index < cache.kv_heads; ++index, from += dim)
            std::memcpy(cache.value(slots[token], index), from, dim * sizeof(T));
    });
}

}  // namespace pointwise
