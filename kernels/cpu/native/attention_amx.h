// Products of attention by AMX, in bfloat16, for attention_run.h. Batch invariance: a score sums along head_dim, and a value
// over keys, in steps of 16, whatever the number of rows; the rows of a tile are independent.
#pragma once
#include <algorithm>

#include "linear_amx.h"

namespace amx {

constexpr int64_t VECTOR = tiles::BYTES / int64_t(sizeof(float));  // keys, or dimensions, in a tile; a step of the other
constexpr int64_t VECTORS = COLUMNS / VECTOR, PAIRS = VECTOR / 2;

// Whether heads of this size are whole numbers of two steps.
inline bool fits(int64_t head_dim) { return head_dim % (2 * VECTOR) == 0; }

// Configures the thread's tiles for some rows, when their number changes: 0 to 3 hold sums, 4 the rows of the first factor, 5
// to 7 the second factor, in turn. Call `end_attention` before other tiles are used.
inline thread_local int64_t attention_rows = 0;
inline void begin_attention(int64_t rows) {
    if (rows == attention_rows) return;
    tiles::Shapes shapes;
    for (int tile : {0, 1, 2, 3, 4}) shapes.set(tile, rows);
    shapes.row_bytes[4] = VECTOR * sizeof(bfloat16);
    for (int tile : {5, 6, 7}) shapes.set(tile, PAIRS);
    tiles::configure(shapes);
    attention_rows = rows;
}
inline void end_attention() {
    if (attention_rows > 0) tiles::release();
    attention_rows = 0;
}

// sums[SUM] += rows times one tile of the second factor, of pairs `stride` bytes apart. Fetches the tile at `next`, if any.
template <int SUM>
inline void add_product(const bfloat16* second, const bfloat16* next, int64_t stride) {
    constexpr int tile = 5 + SUM % 3;
    tiles::load<tile>(second, stride);
    tiles::multiply_add<SUM, 4, tile>();
    if (next != nullptr)
        for (int64_t pair = 0; pair < PAIRS; ++pair)
            simd::prefetch_far(reinterpret_cast<const char*>(next) + pair * stride);
}

// scores [rows][64] = queries [rows, dim] times four vectors of keys, each [dim / 2] pairs of VECTOR keys, `key_stride`
// elements apart. next: the keys that are needed next, or null.
inline void score(const bfloat16* queries, int64_t rows, int64_t dim, const bfloat16* const* keys,
                  const bfloat16* const* next, int64_t key_stride, float* scores) {
    const int64_t stride = key_stride * int64_t(sizeof(bfloat16));
    for (int64_t row = 0; row < rows; row += tiles::ROWS) {
        begin_attention(std::min<int64_t>(tiles::ROWS, rows - row));
        tiles::zero<0>();
        tiles::zero<1>();
        tiles::zero<2>();
        tiles::zero<3>();
        for (int64_t at = 0; at < dim; at += VECTOR) {
            const int64_t place = at / 2 * key_stride;
            const auto ahead = [&](int vector) { return next == nullptr ? nullptr : next[vector] + place; };
            tiles::load<4>(queries + row * dim + at, dim * sizeof(bfloat16));
            add_product<0>(keys[0] + place, ahead(0), stride);
            add_product<1>(keys[1] + place, ahead(1), stride);
            add_product<2>(keys[2] + place, ahead(2), stride);
            add_product<3>(keys[3] + place, ahead(3), stride);
        }
        float* const out = scores + row * COLUMNS;
        tiles::store<0>(out, SUMS_STRIDE);
        tiles::store<1>(out + VECTOR, SUMS_STRIDE);
        tiles::store<2>(out + 2 * VECTOR, SUMS_STRIDE);
        tiles::store<3>(out + 3 * VECTOR, SUMS_STRIDE);
    }
}

// mixed [rows, width] += weights [rows][64] times the values of 64 keys: four vectors of 16 keys, [keys / 2][dim][2], each or
// null, which is left out. next: the values that are needed next, or nulls.
inline void mix(const bfloat16* weights, int64_t rows, const bfloat16* const* values, const bfloat16* const* next,
                int64_t dim, int64_t width, float* mixed) {
    const int64_t stride = 2 * dim * int64_t(sizeof(bfloat16)), mixed_stride = width * int64_t(sizeof(float));
    for (int64_t row = 0; row < rows; row += tiles::ROWS) {
        begin_attention(std::min<int64_t>(tiles::ROWS, rows - row));
        for (int64_t at = 0; at < dim; at += COLUMNS) {
            const bool whole = at + COLUMNS <= dim;  // or half
            float* const out = mixed + row * width + at;
            tiles::load<0>(out, mixed_stride);
            tiles::load<1>(out + VECTOR, mixed_stride);
            if (whole) tiles::load<2>(out + 2 * VECTOR, mixed_stride);
            if (whole) tiles::load<3>(out + 3 * VECTOR, mixed_stride);
            for (int64_t vector = 0; vector < VECTORS; ++vector) {
                if (values[vector] == nullptr) continue;
                const bfloat16* const some = values[vector] + 2 * at;
                const auto ahead = [&](int tile) {
                    return next[vector] == nullptr ? nullptr : next[vector] + 2 * at + 2 * tile * VECTOR;
                };
                tiles::load<4>(weights + row * COLUMNS + vector * VECTOR, COLUMNS * sizeof(bfloat16));
                add_product<0>(some, ahead(0), stride);
                add_product<1>(some + 2 * VECTOR, ahead(1), stride);
                if (whole) add_product<2>(some + 4 * VECTOR, ahead(2), stride);
                if (whole) add_product<3>(some + 6 * VECTOR, ahead(3), stride);
            }
            tiles::store<0>(out, mixed_stride);
            tiles::store<1>(out + VECTOR, mixed_stride);
            if (whole) tiles::store<2>(out + 2 * VECTOR, mixed_stride);
            if (whole) tiles::store<3>(out + 3 * VECTOR, mixed_stride);
        }
    }
}

}  // namespace amx
