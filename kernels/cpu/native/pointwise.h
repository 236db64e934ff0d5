// Operations on one row at a time: norms, rotary embedding with the KV cache write, gated activation. Batch-invariant:
// each row is reduced by one thread in a fixed order.
#pragma once
#include <cmath>

#include "cache.h"
#include "pool.h"

namespace pointwise {

constexpr int64_t ROWS_PER_TASK = 8;

// Calls work(first, last) for chunks of rows, in parallel.
template <class F>
void each_rows(int64_t rows, F&& work) {
    Pool::instance().run((rows + ROWS_PER_TASK - 1) / ROWS_PER_TASK, [&](int64_t task, int) {
        work(task * ROWS_PER_TASK, std::min(rows, (task + 1) * ROWS_PER_TASK));
    });
}

template <class F>
void each_row(int64_t rows, F&& work) {
    each_rows(rows, [&](int64_t first, int64_t last) {
        for (int64_t row = first; row < last; ++row) work(row);
    });
}

// Calls work(at, count) for each vector of `size` elements; `count` is smaller than LANES only in the last one.
template <class F>
void each_vector(int64_t size, F&& work) {
    for (int64_t at = 0; at < size; at += simd::LANES) work(at, int(std::min<int64_t>(simd::LANES, size - at)));
}

// 1 / sqrt(mean square of `size` floats + eps).
inline float inverse_rms(const float* x, int64_t size, float eps) {
    simd::Floats squares = simd::zero();
    each_vector(size, [&](int64_t at, int count) {
        const simd::Floats part = simd::load_first(x + at, count);
        squares = simd::fma(part, part, squares);
    });
    return 1.0f / std::sqrt(simd::sum(squares) / float(size) + eps);
}

// out = x * scale * weight, `size` elements.
template <class T, class Out>
void scale_by(const float* x, float scale, const T* weight, int64_t size, Out* out) {
    const simd::Floats factor = simd::broadcast(scale);
    each_vector(size, [&](int64_t at, int count) {
        const simd::Floats scaled = simd::mul(simd::load_first(x + at, count), factor);
        simd::store_first(out + at, simd::mul(scaled, simd::load_first(weight + at, count)), count);
    });
}

// out = RMS norm of x; with a residual, total = x + residual (rounded to T) and out = norm of total. All [rows, size].
template <class T>
void rms_norm(const T* x, int64_t x_stride, const T* residual, const T* weight, float eps, int64_t rows, int64_t size,
              T* out, T* total) {
    each_row(rows, [=](int64_t row) {
        thread_local std::vector<float> wide;
        wide.resize(size);
        each_vector(size, [&](int64_t at, int count) {
            simd::Floats value = simd::load_first(x + row * x_stride + at, count);
            if (residual != nullptr) {
                T* const sum = total + row * size + at;
                simd::store_first(sum, simd::add(value, simd::load_first(residual + row * size + at, count)), count);
                value = simd::load_first(sum, count);
            }
            simd::store_first(wide.data() + at, value, count);
        });
        scale_by(wide.data(), inverse_rms(wide.data(), size, eps), weight, size, out + row * size);
    });
}

// out [rows, size] = silu(gate) * up, with gate_up [rows, 2 * size].
template <class T>
void silu_mul(const T* gate_up, int64_t rows, int64_t size, T* out) {
    each_row(rows, [=](int64_t row) {
        const T *gate = gate_up + row * 2 * size, *up = gate + size;
        const simd::Floats one = simd::broadcast(1.0f);
        each_vector(size, [&](int64_t at, int count) {
            const simd::Floats g = simd::load_first(gate + at, count), u = simd::load_first(up + at, count);
            const simd::Floats sigmoid = simd::div(one, simd::add(one, simd::exp(simd::sub(simd::zero(), g))));
            simd::store_first(out + row * size + at, simd::mul(simd::mul(g, sigmoid), u), count);
        });
    });
}

template <class T>
void narrow_all(const float* x, int64_t size, T* out) {
    each_vector(size, [=](int64_t at, int count) { simd::store_first(out + at, simd::load_first(x + at, count), count); });
}

// One head of one token: RMS norm (if `weight` is not null), then rotary embedding in the half-split form; in float.
template <class T>
void norm_rope(const T* x, const T* weight, float eps, const float* cos_sin, int64_t head_dim, float* out) {
    const int64_t half = head_dim / 2;
    each_vector(head_dim, [=](int64_t at, int count) {
        simd::store_first(out + at, simd::load_first(x + at, count), count);
    });
    if (weight != nullptr) scale_by(out, inverse_rms(out, head_dim, eps), weight, head_dim, out);
    const float *cos = cos_sin, *sin = cos_sin + half;
    each_vector(half, [=](int64_t at, int count) {
        const simd::Floats first = simd::load_first(out + at, count), second = simd::load_first(out + half + at, count);
        const simd::Floats c = simd::load_first(cos + at, count), s = simd::load_first(sin + at, count);
        simd::store_first(out + at, simd::sub(simd::mul(first, c), simd::mul(second, s)), count);
        simd::store_first(out + half + at, simd::add(simd::mul(second, c), simd::mul(first, s)), count);
    });
}

// Splits qkv [tokens, heads + 2 * kv_heads, head_dim]: writes queries to `query` [tokens, heads, head_dim], keys and
// values to their cache slots. The cache is written head by head, because consecutive tokens of a block share cache lines.
template <class T>
void rope_and_write(const T* qkv, int64_t tokens, int64_t heads, const T* query_norm, const T* key_norm, float eps,
                    const float* cos_sin, const int64_t* positions, const int64_t* slots, Cache<T> cache, T* query) {
    constexpr int step = simd::STEP<T>;
    const int64_t dim = cache.head_dim, stride = (heads + 2 * cache.kv_heads) * dim;
    each_rows(tokens, [=](int64_t first, int64_t last) {
        thread_local std::vector<float> head;
        thread_local std::vector<T> stored;
        head.resize(dim);
        stored.resize(dim);
        const auto turned = [&](int64_t token, int64_t index, const T* norm, T* out) {
            norm_rope(qkv + token * stride + index * dim, norm, eps, cos_sin + positions[token] * dim, dim, head.data());
            narrow_all(head.data(), dim, out);
        };
        for (int64_t token = first; token < last; ++token)
            for (int64_t index = 0; index < heads; ++index)
                turned(token, index, query_norm, query + (token * heads + index) * dim);
        for (int64_t index = 0; index < cache.kv_heads; ++index)
            for (int64_t token = first; token < last; ++token) {
                turned(token, heads + index, key_norm, stored.data());
                T* const key = cache.key(slots[token], index, 0);
                for (int64_t i = 0; i < dim; i += step)
                    std::memcpy(static_cast<void*>(key + i * cache.block_size), stored.data() + i, step * sizeof(T));
            }
        for (int64_t index = 0; index < cache.kv_heads; ++index)
            for (int64_t token = first; token < last; ++token) {
                const T* const from = qkv + token * stride + (heads + cache.kv_heads + index) * dim;
                T* const value = cache.value(slots[token], index, 0);
                for (int64_t i = 0; i < dim; ++i) value[i * step] = from[i];
            }
    });
}

}  // namespace pointwise
