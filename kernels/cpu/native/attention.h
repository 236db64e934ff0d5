// Causal attention over the paged cache. Keys are walked in tiles at fixed absolute positions with an online softmax
// (arXiv 2205.14135); every number of a query's result is one chain over its keys in order. So it depends on the query
// and its keys alone: not on what else is computed, nor on where a prompt was cut.
#pragma once
#include <algorithm>
#include <limits>

#include "cache.h"
#include "pool.h"

namespace attention {

constexpr int TILE_KEYS = 64;
constexpr int TILE_VECTORS = TILE_KEYS / simd::LANES;
constexpr int TILE_ROWS = simd::TILE_VECTORS > 1 ? 4 : 2;  // queries that share what is loaded of keys and values
constexpr int64_t TASK_ROWS = 32;

// R requests, T tokens; every pointer but the caches' as in kernels/reference.py.
template <class T>
struct Inputs {
    const T* query;  // [T, heads, head_dim]
    Cache<T> cache;
    const int32_t* tables;  // [R, table_stride]
    int64_t table_stride;
    const int32_t* starts;  // [R + 1]
    const int32_t* lens;    // [R]
    int64_t requests, heads;
    float scale;
    T* out;
};

// Some queries of one request, for the heads that share one KV head. Rows are (query, head) pairs.
struct Task {
    int64_t request, kv_head, first_query, num_queries;
};

// Where sixteen keys lie: [head_dim / STEP] operands, `stride` elements apart.
template <class T>
struct Keys {
    const T* first;
    int64_t stride;
};

// What a task works in, kept by its thread for the next one.
template <class T>
struct Scratch {
    std::vector<float> mixed;          // [rows, width]: values mixed so far, unscaled
    std::vector<float> weights;        // [rows, TILE_KEYS]: scores of this tile, then weights
    std::vector<float> best;           // [rows]: largest score so far
    std::vector<float> totals;         // [rows, 16]: sums of weights, lane by lane
    std::vector<T> gathered;
};

template <class T>
class Run {
public:
    Run(const Inputs<T>& in, const Task& task, Scratch<T>& scratch)
        : in_(in), task_(task), scratch_(scratch), group_(in.heads / in.cache.kv_heads), rows_(task.num_queries * group_),
          width_((in.cache.head_dim + simd::LANES - 1) / simd::LANES * simd::LANES),
          table_(in.tables + task.request * in.table_stride) {
        const int64_t first = in.starts[task.request], count = in.starts[task.request + 1] - first;
        token_ = first + task.first_query;
        length_ = in.lens[task.request] - count + task.first_query + 1;
    }

    void operator()() {
        const int64_t end = length(rows_ - 1);
        scratch_.mixed.assign(rows_ * width_, 0.0f);
        scratch_.weights.resize(rows_ * TILE_KEYS);
        scratch_.best.assign(rows_, -std::numeric_limits<float>::infinity());
        scratch_.totals.assign(rows_ * simd::LANES, 0.0f);
        for (int64_t begin = 0; begin < end; begin += TILE_KEYS) {
            score(begin, int(std::min<int64_t>(TILE_KEYS, end - begin)));
            for (int64_t row = 0; row < rows_; ++row) weigh(row, begin);
            mix(begin);
        }
        for (int64_t row = 0; row < rows_; ++row) finish(row);
    }

private:
    // Keys that a row may see: those up to its own position.
    int64_t length(int64_t row) const { return length_ + row / group_; }
    int64_t place(int64_t row) const {
        return ((token_ + row / group_) * in_.heads + task_.kv_head * group_ + row % group_) * in_.cache.head_dim;
    }
    int64_t slot(int64_t key) const {
        return table_[key / in_.cache.block_size] * in_.cache.block_size + key % in_.cache.block_size;
    }

    // The dot products of all rows with the tile's keys; what lies behind the last key has no meaning.
    void score(int64_t begin, int count) {
        Keys<T> keys[TILE_VECTORS];
        for (int v = 0; v < TILE_VECTORS; ++v)
            keys[v] = v * simd::LANES < count ? sixteen(begin + v * simd::LANES, begin + count, v) : keys[0];
        for (int64_t row = 0; row < rows_; row += TILE_ROWS) {
            switch (std::min<int64_t>(TILE_ROWS, rows_ - row)) {
                case 1: score_rows<1>(row, keys); break;
                case 2: score_rows<2>(row, keys); break;
                case 3: score_rows<3>(row, keys); break;
                default: score_rows<TILE_ROWS>(row, keys);
            }
        }
    }

    // Sixteen keys as they lie, or gathered where a block does not hold sixteen in a row.
    Keys<T> sixteen(int64_t first, int64_t end, int vector) {
        constexpr int step = simd::STEP<T>;
        const Cache<T>& cache = in_.cache;
        if (cache.block_size % simd::LANES == 0) return {cache.key(slot(first), task_.kv_head, 0), cache.block_size * step};
        scratch_.gathered.resize(TILE_KEYS * cache.head_dim);
        T* const out = scratch_.gathered.data() + vector * simd::LANES * cache.head_dim;
        for (int64_t key = first; key < std::min(end, first + simd::LANES); ++key)
            for (int64_t i = 0; i < cache.head_dim; ++i)
                out[(i / step * simd::LANES + key - first) * step + i % step] = *cache.key(slot(key), task_.kv_head, i);
        return {out, simd::LANES * step};
    }

    template <int ROWS>
    void score_rows(int64_t row, const Keys<T>* keys) {
        constexpr int step = simd::STEP<T>;
        const T* query[ROWS];
        simd::Floats sum[ROWS][TILE_VECTORS];
        for (int r = 0; r < ROWS; ++r) {
            query[r] = in_.query + place(row + r);
            for (int v = 0; v < TILE_VECTORS; ++v) sum[r][v] = simd::zero();
        }
        for (int64_t at = 0; at < in_.cache.head_dim / step; ++at) {
            decltype(simd::columns(keys->first)) column[TILE_VECTORS];
            for (int v = 0; v < TILE_VECTORS; ++v) column[v] = simd::columns(keys[v].first + at * keys[v].stride);
            for (int r = 0; r < ROWS; ++r) {
                const auto element = simd::element(query[r] + at * step);
                for (int v = 0; v < TILE_VECTORS; ++v) sum[r][v] = simd::mac(sum[r][v], element, column[v]);
            }
        }
        for (int r = 0; r < ROWS; ++r)
            for (int v = 0; v < TILE_VECTORS; ++v)
                simd::store(scratch_.weights.data() + (row + r) * TILE_KEYS + v * simd::LANES, sum[r][v]);
    }

    // From scores to weights relative to the largest score so far; what was mixed before is scaled to it.
    void weigh(int64_t row, int64_t begin) {
        float* const weights = scratch_.weights.data() + row * TILE_KEYS;
        const int64_t count = length(row) - begin;
        if (count <= 0) {
            std::fill(weights, weights + TILE_KEYS, 0.0f);
            return;
        }
        constexpr float none = -std::numeric_limits<float>::infinity();
        simd::Floats scores[TILE_VECTORS], top = simd::broadcast(none);
        for (int v = 0; v < TILE_VECTORS; ++v) {
            const int seen = int(std::clamp<int64_t>(count - v * simd::LANES, 0, simd::LANES));
            const simd::Floats scaled = simd::mul(simd::load(weights + v * simd::LANES), simd::broadcast(in_.scale));
            scores[v] = seen == simd::LANES ? scaled : simd::first(scaled, seen, none);
            top = simd::max(top, scores[v]);
        }
        const float best = std::max(scratch_.best[row], simd::largest(top));
        const simd::Floats rescale = simd::exp(simd::broadcast(scratch_.best[row] - best));
        simd::Floats total = simd::load(scratch_.totals.data() + row * simd::LANES);
        if (best > scratch_.best[row]) {
            float* const mixed = scratch_.mixed.data() + row * width_;
            for (int64_t at = 0; at < width_; at += simd::LANES)
                simd::store(mixed + at, simd::mul(simd::load(mixed + at), rescale));
            total = simd::mul(total, rescale);
            scratch_.best[row] = best;
        }
        for (int v = 0; v < TILE_VECTORS; ++v) {
            const simd::Floats weight = simd::exp(simd::sub(scores[v], simd::broadcast(best)));
            total = simd::add(total, weight);
            simd::store(weights + v * simd::LANES, weight);
        }
        simd::store(scratch_.totals.data() + row * simd::LANES, total);
    }

    // Adds the tile's values, weighted, to what is mixed of each row.
    void mix(int64_t begin) {
        const T* values[TILE_KEYS];
        const int64_t seen = std::min<int64_t>(TILE_KEYS, length(rows_ - 1) - begin);
        for (int64_t key = 0; key < seen; ++key) values[key] = in_.cache.value(slot(begin + key), task_.kv_head);
        for (int64_t row = 0; row < rows_; row += TILE_ROWS) {
            const int64_t last = std::min<int64_t>(rows_, row + TILE_ROWS);
            // The keys that all of these rows see; then those that only some do: a row never touches another's.
            const int64_t shared = seen_by(row, begin);
            switch (last - row) {
                case 1: mix_rows<1>(row, values, 0, shared); break;
                case 2: mix_rows<2>(row, values, 0, shared); break;
                case 3: mix_rows<3>(row, values, 0, shared); break;
                default: mix_rows<TILE_ROWS>(row, values, 0, shared);
            }
            for (int64_t one = row; one < last; ++one) mix_rows<1>(one, values, shared, seen_by(one, begin));
        }
    }

    // Keys of the tile that a row sees.
    int64_t seen_by(int64_t row, int64_t begin) const { return std::clamp<int64_t>(length(row) - begin, 0, TILE_KEYS); }

    template <int ROWS>
    void mix_rows(int64_t row, const T* const* values, int64_t from, int64_t to) {
        if (from >= to) return;
        constexpr int vectors = TILE_VECTORS, lanes = simd::LANES;
        const int64_t dim = in_.cache.head_dim;
        int64_t at = 0;
        for (; at + vectors * lanes <= dim; at += vectors * lanes) mix_part<ROWS, vectors>(row, values, from, to, at, lanes);
        for (; at < dim; at += lanes) mix_part<ROWS, 1>(row, values, from, to, at, int(std::min<int64_t>(lanes, dim - at)));
    }

    // Dimensions [at, at + VECTORS * 16); of a last vector, `width` only.
    template <int ROWS, int VECTORS>
    void mix_part(int64_t row, const T* const* values, int64_t from, int64_t to, int64_t at, int width) {
        simd::Floats sum[ROWS][VECTORS];
        for (int r = 0; r < ROWS; ++r)
            for (int v = 0; v < VECTORS; ++v) sum[r][v] = simd::load(mixed(row + r, at, v));
        for (int64_t key = from; key < to; ++key) {
            simd::Floats value[VECTORS];
            for (int v = 0; v < VECTORS; ++v)
                value[v] = VECTORS > 1 ? simd::load(values[key] + at + v * simd::LANES)
                                       : simd::load_first(values[key] + at, width);
            for (int r = 0; r < ROWS; ++r) {
                const simd::Floats weight = simd::broadcast(scratch_.weights[(row + r) * TILE_KEYS + key]);
                for (int v = 0; v < VECTORS; ++v) sum[r][v] = simd::fma(weight, value[v], sum[r][v]);
            }
        }
        for (int r = 0; r < ROWS; ++r)
            for (int v = 0; v < VECTORS; ++v) simd::store(mixed(row + r, at, v), sum[r][v]);
    }

    float* mixed(int64_t row, int64_t at, int vector) { return scratch_.mixed.data() + row * width_ + at + vector * simd::LANES; }

    void finish(int64_t row) {
        const simd::Floats total = simd::broadcast(simd::sum(simd::load(scratch_.totals.data() + row * simd::LANES)));
        const int64_t dim = in_.cache.head_dim;
        T* const out = in_.out + place(row);
        for (int64_t at = 0; at < dim; at += simd::LANES)
            simd::store_first(out + at, simd::div(simd::load(mixed(row, at, 0)), total),
                              int(std::min<int64_t>(simd::LANES, dim - at)));
    }

    const Inputs<T>& in_;
    const Task& task_;
    Scratch<T>& scratch_;
    const int64_t group_, rows_, width_;
    const int32_t* const table_;
    int64_t token_;   // the first query's
    int64_t length_;  // keys that it sees
};

template <class T>
void paged_attention(const Inputs<T>& in) {
    const int64_t group = in.heads / in.cache.kv_heads, queries = std::max<int64_t>(1, TASK_ROWS / group);
    std::vector<Task> tasks;
    for (int64_t request = 0; request < in.requests; ++request) {
        const int64_t count = in.starts[request + 1] - in.starts[request];
        for (int64_t kv_head = 0; kv_head < in.cache.kv_heads; ++kv_head)
            for (int64_t first = 0; first < count; first += queries)
                tasks.push_back({request, kv_head, first, std::min(queries, count - first)});
    }
    Pool::instance().run(int64_t(tasks.size()), [&](int64_t index, int) {
        thread_local Scratch<T> scratch;
        Run<T>(in, tasks[index], scratch)();
    });
}

}  // namespace attention
