// Memory layout of one layer's paged KV cache: pieces [blocks, kv_heads], each a block's keys and then values of one KV
// head. Both are product operands, with STEP elements along K together. Scores sum over head_dim, so keys are
// [head_dim / STEP, block_size, STEP]: sixteen keys are one vector. The output sums over keys, so values are
// [steps, head_dim, STEP], where `steps` is block_size / STEP, rounded up.
#pragma once
#include "simd.h"

template <class T>
struct Cache {
    static constexpr int64_t STEP = simd::STEP<T>;

    T* pieces;
    int64_t kv_heads, head_dim, block_size;

    // Address of element `i` of a slot's key; slot = block * block_size + offset.
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
