// How one layer's paged KV cache lies in memory, so that sixteen keys are beside each other, as columns of a product:
// keys [blocks, kv_heads, head_dim / STEP, block_size, STEP], values [blocks, kv_heads, block_size, head_dim].
#pragma once
#include "simd.h"

template <class T>
struct Cache {
    T* keys;
    T* values;
    int64_t kv_heads, head_dim, block_size;

    // Element `i` of a slot's key; a slot is block * block_size + offset.
    T* key(int64_t slot, int64_t kv_head, int64_t i) const {
        constexpr int step = simd::STEP<T>;
        return keys_of(slot / block_size, kv_head) + (i / step * block_size + slot % block_size) * step + i % step;
    }
    T* keys_of(int64_t block, int64_t kv_head) const {
        return keys + (block * kv_heads + kv_head) * head_dim * block_size;
    }
    T* value(int64_t slot, int64_t kv_head) const {
        return values + ((slot / block_size * kv_heads + kv_head) * block_size + slot % block_size) * head_dim;
    }
};
