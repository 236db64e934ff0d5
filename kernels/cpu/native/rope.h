// Queries and keys of a step: norm of each head, rotary embedding, and the write to the KV cache. Twin:
// reference.rope_and_write.
#pragma once
#include "cache.h"
#include "norm.h"

namespace rope {

// What is done to each query head, or to each key head.
struct Turn {
    const float* norm;   // [head_dim]: RMS norm; may be null
    const float* table;  // [positions, rotary]: cosines, then sines; may be null
};

struct Shape {
    int64_t tokens, heads;
    int64_t rotary;  // elements at a head's beginning that turn
    float eps;
};

// One head of one token, in float: x to out.
template <class T>
void turn(const T* x, const Turn& how, int64_t position, const Shape& shape, int64_t head_dim, float* out) {
    rows::convert(x, head_dim, out);
    if (how.norm != nullptr) norm::part(out, {how.norm, nullptr, head_dim, shape.eps, false}, out);
    if (how.table == nullptr) return;
    const int64_t half = shape.rotary / 2;
    const float *cos = how.table + position * shape.rotary, *sin = cos + half;
    rows::each_vector(half, [=](int64_t at, int count) {
        const simd::Floats first = simd::load_first(out + at, count), second = simd::load_first(out + half + at, count);
        const simd::Floats c = simd::load_first(cos + at, count), s = simd::load_first(sin + at, count);
        simd::store_first(out + at, simd::sub(simd::mul(first, c), simd::mul(second, s)), count);
        simd::store_first(out + half + at, simd::add(simd::mul(second, c), simd::mul(first, s)), count);
    });
}

// Splits qkv [tokens, heads + 2 * kv_heads, head_dim]: writes queries to `query` [tokens, heads, head_dim], keys and
// values to their cache slots. The cache is written head by head, because consecutive tokens of a block share cache lines.
template <class T>
void turn_and_write(const T* qkv, const Shape& shape, const Turn& queries, const Turn& keys, const int64_t* positions,
                    const int64_t* slots, Cache<T> cache, T* query) {
    constexpr int step = simd::STEP<T>;
    const int64_t dim = cache.head_dim, heads = shape.heads, stride = (heads + 2 * cache.kv_heads) * dim;
    rows::each_rows(shape.tokens, [=](int64_t first, int64_t last) {
        thread_local std::vector<float> head;
        thread_local std::vector<T> stored;
        head.resize(dim);
        stored.resize(dim);
        const auto turned = [&](int64_t token, int64_t index, const Turn& how, T* out) {
            turn(qkv + token * stride + index * dim, how, positions[token], shape, dim, head.data());
            rows::convert(head.data(), dim, out);
        };
        for (int64_t token = first; token < last; ++token)
            for (int64_t index = 0; index < heads; ++index)
                turned(token, index, queries, query + (token * heads + index) * dim);
        for (int64_t index = 0; index < cache.kv_heads; ++index)
            for (int64_t token = first; token < last; ++token) {
                turned(token, heads + index, keys, stored.data());
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

}  // namespace rope
