// Some queries' causal attention over the paged KV cache. Batch invariance: an online softmax (arXiv 2205.14135) runs over
// tiles of 64 keys at fixed absolute positions, and each output element is one chain of sums over the keys in order. So a
// result depends on the query and its keys alone, not on other requests or on how a prompt was chunked. With a sliding
// window, tiles before it are skipped; of its first tile, a query never reads the values before its own window, which may
// be another request's by now.
#pragma once
#include <algorithm>
#include <limits>

#include "linear.h"
#include "soft_cap.h"
#include "tile.h"
#if defined(__AMX_BF16__) || defined(TANDEM_EMULATE_TILES)
#include "attention_amx.h"
#endif

namespace attention {

constexpr int TILE_ROWS = simd::TILE_VECTORS > 1 ? 4 : 2;  // rows that share each load of keys and values
constexpr int64_t FEW_ROWS = 16;  // up to so many, a task waits for memory

// R requests, T tokens. As in kernels/reference.py, except for the cache's layout (cache.h).
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
    int64_t window;      // keys that a query attends to, its own included; 0: all up to its own
    float soft_cap;      // of the scores, after the scale; 0: none
    const float* sinks;  // [heads]: the score of a key without a value that each query attends to as well; may be null
    T* out;
};

// Some queries of one request, for the query heads of one or several KV heads. Rows are (query, head) pairs.
struct Task {
    int64_t request, first_head, num_heads, first_query, num_queries;
};

// The type of softmax weights that are multiplied with values.
template <class T>
struct WeightOf {
    using type = float;
};
template <>
struct WeightOf<bfloat16> {
    using type = bfloat16;
};

// A task's workspace, kept by its thread for the next task.
template <class T>
struct Scratch {
    Buffer<float> mixed;   // [rows, width]: accumulator, the weighted sum of values, not yet normalised
    Buffer<float> scores;  // [rows, TILE_KEYS]
    Buffer<typename WeightOf<T>::type> weights;  // [rows, TILE_KEYS]: exp(score - best)
    Buffer<float> best;    // [rows]: running maximum of scores
    Buffer<float> totals;  // [rows, 16]: running sums of weights, per lane
    Buffer<T> gathered;    // keys and values of a tile (tile.h)
    Buffer<T> queries;     // [rows, head_dim], for AMX
    Buffer<T> some;        // [TILE_KEYS, head_dim], as in the cache: values of a part of a tile's keys, for AMX
};

// One KV head of a task, tile by tile.
template <class T>
class Run {
public:
    Run(const Inputs<T>& in, const Task& task, int64_t kv_head, Scratch<T>& scratch)
        : in_(in), scratch_(scratch), kv_head_(kv_head), group_(in.heads / in.cache.kv_heads),
          rows_(task.num_queries * group_), width_((in.cache.head_dim + simd::LANES - 1) / simd::LANES * simd::LANES),
          tiles_(in.cache, in.tables + task.request * in.table_stride, kv_head, scratch.gathered) {
        const int64_t first = in.starts[task.request], count = in.starts[task.request + 1] - first;
        token_ = first + task.first_query;
        length_ = in.lens[task.request] - count + task.first_query + 1;
        scratch_.mixed.assign(rows_ * width_, 0.0f);
        scratch_.scores.resize(rows_ * TILE_KEYS);
        scratch_.weights.resize(rows_ * TILE_KEYS);
        scratch_.best.assign(rows_, -std::numeric_limits<float>::infinity());
        scratch_.totals.assign(rows_ * simd::LANES, 0.0f);
        if (in.sinks != nullptr)
            for (int64_t row = 0; row < rows_; ++row) {
                scratch_.best[row] = in.sinks[kv_head_ * group_ + row % group_];
                scratch_.totals[row * simd::LANES] = 1.0f;
            }
        if (uses_amx()) gather_queries();
    }

    // Number of keys of the last row, which has the most.
    int64_t num_keys() const { return length(rows_ - 1); }
    // The first key of the first tile that a row attends to.
    int64_t first_tile() const { return first_key(0) / TILE_KEYS * TILE_KEYS; }

    // Keys [begin, begin + 64).
    void step(int64_t begin) {
        const Tile<T> tile = tiles_.at(begin, num_keys());
        Tile<T> room;
        const Tile<T>* const next = fetches(begin) ? &(room = tiles_.at(begin + TILE_KEYS, num_keys())) : nullptr;
        score(tile, next);
        for (int64_t row = 0; row < rows_; ++row) weigh(row, begin);
        mix(tile, next, begin);
    }

    void finish() {
        for (int64_t row = 0; row < rows_; ++row) finish(row);
    }

private:
    static constexpr int STEP = simd::STEP<T>;
    using Weight = typename WeightOf<T>::type;

    // Number of keys of a row: those up to its own position.
    int64_t length(int64_t row) const { return length_ + row / group_; }
    // The first key that a row attends to.
    int64_t first_key(int64_t row) const { return in_.window ? std::max<int64_t>(0, length(row) - in_.window) : 0; }
    int64_t place(int64_t row) const {
        return ((token_ + row / group_) * in_.heads + kv_head_ * group_ + row % group_) * in_.cache.head_dim;
    }

    bool uses_amx() const { return amx::MULTIPLIES<T> && amx::fits(in_.cache.head_dim); }

    // Whether the tile behind the one at `begin` is fetched meanwhile: those of prompts share its keys and values.
    bool fetches(int64_t begin) const {
        return uses_amx() && rows_ <= FEW_ROWS && begin + TILE_KEYS < num_keys() && !tiles_.gathers();
    }

    void gather_queries() {
        const int64_t dim = in_.cache.head_dim;
        scratch_.queries.resize(rows_ * dim);
        for (int64_t row = 0; row < rows_; ++row)
            std::memcpy(static_cast<void*>(scratch_.queries.data() + row * dim), in_.query + place(row), dim * sizeof(T));
    }

    // Dot products of all rows with the tile's keys; those past the last key are undefined.
    void score(const Tile<T>& tile, const Tile<T>* next) {
        if constexpr (amx::MULTIPLIES<T>)
            if (uses_amx())
                return amx::score(scratch_.queries.data(), rows_, in_.cache.head_dim, tile.keys,
                                  next == nullptr ? nullptr : next->keys, tile.key_stride, scratch_.scores.data());
        for (int64_t row = 0; row < rows_; row += TILE_ROWS) {
            switch (std::min<int64_t>(TILE_ROWS, rows_ - row)) {
                case 1: score_rows<1>(row, tile); break;
                case 2: score_rows<2>(row, tile); break;
                case 3: score_rows<3>(row, tile); break;
                default: score_rows<TILE_ROWS>(row, tile);
            }
        }
    }

    template <int ROWS>
    void score_rows(int64_t row, const Tile<T>& tile) {
        const T* query[ROWS];
        simd::Floats sum[ROWS][TILE_VECTORS];
        for (int r = 0; r < ROWS; ++r) {
            query[r] = in_.query + place(row + r);
            for (int v = 0; v < TILE_VECTORS; ++v) sum[r][v] = simd::zero();
        }
        for (int64_t at = 0; at < in_.cache.head_dim / STEP; ++at) {
            decltype(simd::columns(*tile.keys)) column[TILE_VECTORS];
            for (int v = 0; v < TILE_VECTORS; ++v) column[v] = simd::columns(tile.keys[v] + at * tile.key_stride);
            for (int r = 0; r < ROWS; ++r) {
                const auto element = simd::element(query[r] + at * STEP);
                for (int v = 0; v < TILE_VECTORS; ++v) sum[r][v] = simd::mac(sum[r][v], element, column[v]);
            }
        }
        for (int r = 0; r < ROWS; ++r)
            for (int v = 0; v < TILE_VECTORS; ++v)
                simd::store(scratch_.scores.data() + (row + r) * TILE_KEYS + v * simd::LANES, sum[r][v]);
    }

    // Online softmax: scores to weights relative to the running maximum; rescales accumulator and sums if it grows.
    void weigh(int64_t row, int64_t begin) {
        const float* const products = scratch_.scores.data() + row * TILE_KEYS;
        Weight* const weights = scratch_.weights.data() + row * TILE_KEYS;
        const int64_t first = unseen_by(row, begin), last = seen_by(row, begin);
        if (first >= last) {
            std::fill_n(weights, TILE_KEYS, Weight{});
            return;
        }
        constexpr float none = -std::numeric_limits<float>::infinity();
        simd::Floats scores[TILE_VECTORS], top = simd::broadcast(none);
        for (int v = 0; v < TILE_VECTORS; ++v) {
            const int from = int(std::clamp<int64_t>(first - v * simd::LANES, 0, simd::LANES));
            const int to = int(std::clamp<int64_t>(last - v * simd::LANES, 0, simd::LANES));
            simd::Floats scaled = simd::mul(simd::load(products + v * simd::LANES), simd::broadcast(in_.scale));
            if (in_.soft_cap) scaled = soft_cap::capped(scaled, in_.soft_cap);
            scores[v] = to - from == simd::LANES ? scaled : simd::within(scaled, from, to, none);
            top = simd::max(top, scores[v]);
        }
        const float best = std::max(scratch_.best[row], simd::largest(top));
        simd::Floats total = simd::load(scratch_.totals.data() + row * simd::LANES);
        if (best > scratch_.best[row]) {
            const simd::Floats rescale = simd::exp(simd::broadcast(scratch_.best[row] - best));
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

    // Adds the tile's weighted values to each row's accumulator.
    void mix(const Tile<T>& tile, const Tile<T>* next, int64_t begin) {
        if constexpr (amx::MULTIPLIES<T>)
            if (uses_amx()) return mix_by_amx(tile, next, begin, 0, rows_);
        mix(tile, begin, 0, rows_);
    }

    // The same for rows [first, end), by AMX. A key has weight 0 for a row that does not attend to it. Keys that no row
    // attends to are never read: vectors of them are left out, or zeros stand in for them. If a value to which only some
    // rows attend is not finite, each row is alone, for 0 times it is not 0; the sums are the same.
    void mix_by_amx(const Tile<T>& tile, const Tile<T>* next, int64_t begin, int64_t first, int64_t end) {
        const int64_t from = unseen_by(first, begin), to = seen_by(end - 1, begin);
        const int64_t all_from = unseen_by(end - 1, begin), all_to = seen_by(first, begin);
        const T *values[TILE_VECTORS], *ahead[TILE_VECTORS];
        for (int v = 0; v < TILE_VECTORS; ++v) {
            const int64_t low = v * simd::LANES, high = low + simd::LANES;
            values[v] = tile.values[low / STEP];
            ahead[v] = next == nullptr ? nullptr : next->values[low / STEP];
            if (from >= high || to <= low) values[v] = nullptr;
            else if (from > low || to < high) values[v] = only(values[v], v, from - low, to - low);
            if (values[v] == nullptr || (all_from <= low && all_to >= high)) continue;
            if (end - first > 1 && !is_finite(values[v])) {
                for (int64_t row = first; row < end; ++row) mix_by_amx(tile, next, begin, row, row + 1);
                return;
            }
        }
        amx::mix(scratch_.weights.data() + first * TILE_KEYS, end - first, values, ahead, in_.cache.head_dim, width_,
                 scratch_.mixed.data() + first * width_);
    }

    // A copy of a vector's values, [keys / 2][dim][2], with zeros but for the keys [from, to).
    const T* only(const T* values, int vector, int64_t from, int64_t to) {
        const int64_t pair_size = STEP * in_.cache.head_dim, size = simd::LANES / STEP * pair_size;
        scratch_.some.resize(TILE_VECTORS * size);
        T* const out = scratch_.some.data() + vector * size;
        const auto mask = [=](int64_t key) { return uint16_t(from <= key && key < to ? 0xffff : 0); };
        for (int64_t key = 0; key < simd::LANES; key += STEP) {
            const uint16_t even = mask(key), odd = mask(key + 1);
            const int64_t first = key / STEP * pair_size;
            for (int64_t at = first; at < first + pair_size; at += STEP) {
                out[at].bits = values[at].bits & even;
                out[at + 1].bits = values[at + 1].bits & odd;
            }
        }
        return out;
    }

    bool is_finite(const T* values) const {
        simd::Floats wrong = simd::zero();
        for (int64_t at = 0; at < simd::LANES * in_.cache.head_dim; at += simd::LANES) {
            const simd::Floats x = simd::load(values + at);
            wrong = simd::add(wrong, simd::sub(x, x));
        }
        return simd::sum(wrong) == 0.0f;
    }

    // Rows [first, end).
    void mix(const Tile<T>& tile, int64_t begin, int64_t first, int64_t end) {
        for (int64_t row = first; row < end; row += TILE_ROWS) {
            const int64_t last = std::min<int64_t>(end, row + TILE_ROWS);
            // Between the keys that all of these rows attend to, each row's others: a row reads no earlier or later key.
            const int64_t from = (unseen_by(last - 1, begin) + STEP - 1) / STEP * STEP;
            const int64_t to = std::max(from, seen_by(row, begin) / STEP * STEP);
            for (int64_t one = row; one < last; ++one)
                mix_rows<1>(one, tile, unseen_by(one, begin), std::min(from, seen_by(one, begin)));
            switch (last - row) {
                case 1: mix_rows<1>(row, tile, from, to); break;
                case 2: mix_rows<2>(row, tile, from, to); break;
                case 3: mix_rows<3>(row, tile, from, to); break;
                default: mix_rows<TILE_ROWS>(row, tile, from, to);
            }
            for (int64_t one = row; one < last; ++one) mix_rows<1>(one, tile, to, seen_by(one, begin));
        }
    }

    // Of the tile's keys, a row attends to [unseen_by, seen_by).
    int64_t unseen_by(int64_t row, int64_t begin) const {
        return std::clamp<int64_t>(first_key(row) - begin, 0, TILE_KEYS);
    }
    int64_t seen_by(int64_t row, int64_t begin) const { return std::clamp<int64_t>(length(row) - begin, 0, TILE_KEYS); }

    // Keys [from, to) of the tile; whole numbers of steps unless there is one row.
    template <int ROWS>
    void mix_rows(int64_t row, const Tile<T>& tile, int64_t from, int64_t to) {
        if (from >= to) return;
        constexpr int vectors = TILE_VECTORS, lanes = simd::LANES;
        const int64_t dim = in_.cache.head_dim;
        int64_t at = 0;
        for (; at + vectors * lanes <= dim; at += vectors * lanes) mix_part<ROWS, vectors>(row, tile, from, to, at, lanes);
        for (; at < dim; at += lanes) mix_part<ROWS, 1>(row, tile, from, to, at, int(std::min<int64_t>(lanes, dim - at)));
    }

    // Dimensions [at, at + VECTORS * 16); of a last vector, `width` only.
    template <int ROWS, int VECTORS>
    void mix_part(int64_t row, const Tile<T>& tile, int64_t from, int64_t to, int64_t at, int width) {
        simd::Floats sum[ROWS][VECTORS];
        const Weight* const weights = scratch_.weights.data() + row * TILE_KEYS;
        for (int r = 0; r < ROWS; ++r)
            for (int v = 0; v < VECTORS; ++v) sum[r][v] = simd::load(mixed(row + r, at, v));
        int64_t key = from;
        if constexpr (ROWS == 1 && STEP == 2)
            if (key % STEP) {  // the row's first key is the second of a pair; the first must not be added
                add_one(sum[0], tile, weights, key - 1, at, width, [](auto value) { return simd::odd(value); });
                ++key;
            }
        for (; key + STEP <= to; key += STEP) {
            decltype(simd::columns(*tile.values)) value[VECTORS];
            for (int v = 0; v < VECTORS; ++v) {
                const int64_t place = (at + v * simd::LANES) * STEP;
                value[v] = VECTORS > 1 ? simd::columns(tile.values[key / STEP] + place)
                                       : first_columns(tile.values[key / STEP] + place, width);
            }
            for (int r = 0; r < ROWS; ++r) {
                const auto weight = simd::element(weights + r * TILE_KEYS + key);
                for (int v = 0; v < VECTORS; ++v) sum[r][v] = simd::mac(sum[r][v], weight, value[v]);
            }
        }
        if constexpr (ROWS == 1 && STEP == 2)
            if (key < to)  // the row's last key is the first of a pair; the second must not be added
                add_one(sum[0], tile, weights, key, at, width, [](auto value) { return simd::even(value); });
        for (int r = 0; r < ROWS; ++r)
            for (int v = 0; v < VECTORS; ++v) simd::store(mixed(row + r, at, v), sum[r][v]);
    }

    // Adds one key of the pair that begins at `key`, which `part` keeps.
    template <int VECTORS, class F>
    static void add_one(simd::Floats (&sum)[VECTORS], const Tile<T>& tile, const Weight* weights, int64_t key, int64_t at,
                        int width, F&& part) {
        for (int v = 0; v < VECTORS; ++v) {
            const auto value = first_columns(tile.values[key / STEP] + (at + v * simd::LANES) * STEP, width);
            sum[v] = simd::mac(sum[v], simd::element(weights + key), part(value));
        }
    }

    static auto first_columns(const T* p, int width) {
        if (width == simd::LANES) return simd::columns(p);
        T padded[simd::LANES * STEP] = {};
        std::memcpy(static_cast<void*>(padded), p, width * STEP * sizeof(T));
        return simd::columns(padded);
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
    Scratch<T>& scratch_;
    const int64_t kv_head_, group_, rows_, width_;
    const Tiles<T> tiles_;
    int64_t token_;   // the first query's
    int64_t length_;  // its number of keys
};

}  // namespace attention
