// How one layer's paged KV cache lies in memory. What a block holds of one KV head is one piece, its keys and then its
// values, and both are operands of a product, whose elements along its K lie together in STEPs. Scores sum over the head's
// dimensions: keys [head_dim / STEP, block_size, STEP], so that sixteen keys are beside each other. Mixing sums over keys:
// values [steps, head_dim, STEP], where `steps` is block_size / STEP, rounded up. The pieces: [blocks, kv_heads].
#pragma once
#include "simd.h"

template <class T>
struct Cache {
    static constexpr int64_t STEP = simd::STEP<T>;

    T* pieces;
    int64_t kv_heads, head_dim, block_size;

    // Element `i` of a slot's key; a slot is block * block_size + offset.
    T* key(int64_t slot, int64_t kv_head, int64_t i) const {
        return piece(slot, kv_head) + (i / STEP * block_size + slot % block_size) * STEP + i % STEP;
    }
    T* value(int64_t slot, int64_t kv_head, int64_t i) const {
        const int64_t offset = slot % block_size;
        return piece(slot, kv_head) + block_size * head_dim + (offset / STEP * head_dim + i) * STEP + offset % STEP;
    }

private:
    T* piece(int64_t slot, int64_t kv_head) const {
        const int64_t steps = (block_size + STEP - 1) / STEP;
        return pieces + (slot / block_size * kv_heads + kv_head) * (block_size + steps * STEP) * head_dim;
    }
};
