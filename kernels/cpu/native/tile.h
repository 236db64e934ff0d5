// Addresses of the keys and values of 64 positions of one request and KV head: in the paged KV cache, or in a gathered
// copy if block_size is not a multiple of a vector.
#pragma once
#include <algorithm>

#include "buffer.h"
#include "cache.h"

namespace attention {

constexpr int TILE_KEYS = 64;
constexpr int TILE_VECTORS = TILE_KEYS / simd::LANES;

template <class T>
struct Tile {
    static constexpr int STEPS = TILE_KEYS / simd::STEP<T>;

    const T* keys[TILE_VECTORS];  // sixteen keys each: [head_dim / STEP] operands, `key_stride` elements apart
    int64_t key_stride;
    const T* values[STEPS];  // STEP keys each: [head_dim, STEP]
};

template <class T>
class Tiles {
public:
    // `table`: the request's block table. `room`: buffer for gathered copies, reused between tasks.
    Tiles(const Cache<T>& cache, const int32_t* table, int64_t kv_head, Buffer<T>& room)
        : cache_(cache), table_(table), kv_head_(kv_head), room_(room) {
        if (gathers()) room_.resize(2 * TILE_KEYS * cache_.head_dim);
    }

    // Whether `at` copies.
    bool gathers() const { return cache_.block_size % simd::LANES != 0; }

    // The keys [begin, begin + 64); those at or past `end` are undefined.
    Tile<T> at(int64_t begin, int64_t end) const {
        Tile<T> tile;
        tile.key_stride = (gathers() ? simd::LANES : cache_.block_size) * STEP;
        for (int v = 0; v < TILE_VECTORS; ++v) {
            const int64_t first = std::min(begin + v * simd::LANES, (end - 1) / simd::LANES * simd::LANES);
            tile.keys[v] = gathers() ? gather_keys(first, end, v) : key(first, 0);
            const T* const values = gathers() ? gather_values(first, end, v) : value(first, 0);
            for (int step = 0; step < simd::LANES / STEP; ++step)
                tile.values[v * (simd::LANES / STEP) + step] = values + step * STEP * cache_.head_dim;
        }
        return tile;
    }

private:
    static constexpr int STEP = simd::STEP<T>;

    int64_t slot(int64_t key) const { return table_[key / cache_.block_size] * cache_.block_size + key % cache_.block_size; }
    const T* key(int64_t key, int64_t i) const { return cache_.key(slot(key), kv_head_, i); }
    const T* value(int64_t key, int64_t i) const { return cache_.value(slot(key), kv_head_, i); }

    const T* gather_keys(int64_t first, int64_t end, int vector) const {
        T* const out = room_.data() + vector * simd::LANES * cache_.head_dim;
        for (int64_t at = first; at < std::min(end, first + simd::LANES); ++at)
            for (int64_t i = 0; i < cache_.head_dim; ++i)
                out[(i / STEP * simd::LANES + at - first) * STEP + i % STEP] = *key(at, i);
        return out;
    }

    const T* gather_values(int64_t first, int64_t end, int vector) const {
        T* const out = room_.data() + (TILE_KEYS + vector * simd::LANES) * cache_.head_dim;
        for (int64_t at = first; at < std::min(end, first + simd::LANES); ++at)
            for (int64_t i = 0; i < cache_.head_dim; ++i) {
                const int64_t place = at - first;
                out[(place / STEP * cache_.head_dim + i) * STEP + place % STEP] = *value(at, i);
            }
        return out;
    }

    const Cache<T>& cache_;
    const int32_t* const table_;
    const int64_t kv_head_;
    Buffer<T>& room_;
};

}  // namespace attention
