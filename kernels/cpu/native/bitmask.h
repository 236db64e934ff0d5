// Excludes tokens from rows of logits by packed bits: bit i % 32 of word i // 32 is set if token i may follow.
// Twin: reference.apply_bitmask. Each row is changed by one thread, without arithmetic: batch-invariant.
#pragma once
#include <algorithm>
#include <cstdint>
#include <limits>

#include "pool.h"

namespace bitmask {

constexpr int64_t BITS = 32;

inline void apply_row(float* logits, const int32_t* mask, int64_t vocab) {
    constexpr float excluded = -std::numeric_limits<float>::infinity();
    for (int64_t begin = 0; begin < vocab; begin += BITS) {
        const uint32_t word = uint32_t(mask[begin / BITS]);
        float* const own = logits + begin;
        const int64_t count = std::min(BITS, vocab - begin);
        if (word == 0xffffffff) continue;
        if (word == 0)
            std::fill_n(own, count, excluded);
        else if (count == BITS)
            for (int64_t i = 0; i < BITS; ++i) own[i] = word >> i & 1 ? own[i] : excluded;
        else
            for (int64_t i = 0; i < count; ++i) own[i] = word >> i & 1 ? own[i] : excluded;
    }
}

// Rows `rows` [count] of logits [S, vocab], each by its row of masks [count, words].
inline void apply(float* logits, int64_t vocab, const int32_t* masks, int64_t words, const int64_t* rows, int64_t count) {
    Pool::instance().run(count, [=](int64_t index, int) {
        apply_row(logits + rows[index] * vocab, masks + index * words, vocab);
    });
}

}  // namespace bitmask
