// bfloat16 products by AMX for linear.h. A panel, [k / 2][64 columns][2], is the layout of four adjacent weight tiles.
// Batch invariance: an output sums along K in steps of 32 for any number of rows; the rows of a tile are independent.
#pragma once
#include <algorithm>
#include <type_traits>

#include "rows.h"
#include "tiles.h"

namespace amx {

constexpr const char* NAME = tiles::NAME;
template <class T>
constexpr bool MULTIPLIES = std::is_same_v<T, bfloat16>;

constexpr int COLUMNS = simd::TILE_VECTORS * simd::LANES;  // of a panel
static_assert(COLUMNS == 64);
constexpr int COLUMNS_OF_TILE = tiles::BYTES / int(sizeof(float));
constexpr int64_t STEP = tiles::BYTES / int64_t(sizeof(bfloat16));  // elements along K in a tile
constexpr int64_t PANEL_STRIDE = 2 * COLUMNS * sizeof(bfloat16);    // of pairs, in bytes
constexpr int64_t SUMS_STRIDE = COLUMNS * sizeof(float);
constexpr int64_t LINE = 64;  // bytes, of the cache
constexpr int64_t AHEAD = 2 * STEP * COLUMNS;  // prefetch distance in elements of the panel, if it is read once

// Tiles 0 to 3 hold sums: HEIGHT row tiles by 4 / HEIGHT column tiles; 4 and 5 hold rows of x; 6 and 7 weights.
template <int HEIGHT>
tiles::Shapes shapes_for(int64_t rows) {
    tiles::Shapes shapes;
    for (int tile = 0; tile < 4; ++tile)
        shapes.set(tile, std::min<int64_t>(tiles::ROWS, rows - tile / (4 / HEIGHT) * tiles::ROWS));
    for (int tile = 0; tile < HEIGHT; ++tile)
        shapes.set(4 + tile, std::min<int64_t>(tiles::ROWS, rows - tile * tiles::ROWS));
    for (int tile : {6, 7}) shapes.set(tile, tiles::ROWS);
    return shapes;
}

// Rows of x in the order in which products load them: for each 32 rows, and each step along K, two tiles. `depth`: elements of
// a row, a multiple of STEP.
struct Tiled {
    static constexpr int64_t SIZE = tiles::ROWS * STEP;  // elements of a tile

    const bfloat16* at;
    int64_t depth;

    // The same from an element on, at the beginning of tiles.
    Tiled from(int64_t row, int64_t column) const { return {at + row * depth + column * 2 * tiles::ROWS, depth}; }
};

// Where a step loads x: two tiles, whose rows are `stride` bytes apart.
struct TilePair {
    const bfloat16 *first, *second;
    int64_t stride;
};
inline TilePair tile_pair(const rows::RowMajor<bfloat16>& x) {
    return {x.at, x.at + tiles::ROWS * x.stride, x.stride * int64_t(sizeof(bfloat16))};
}
inline TilePair tile_pair(const Tiled& x) { return {x.at, x.at + Tiled::SIZE, tiles::BYTES}; }

// Writes rows of `depth` elements as Tiled to `out`, which has room for a multiple of 32 rows; at_row(row) is where a row
// begins. Those that are not there stay.
template <class At>
Tiled tile_rows(int64_t rows, int64_t depth, At at_row, bfloat16* out) {
    for (int64_t first = 0; first < rows; first += tiles::ROWS) {
        bfloat16* tile = out + first / tiles::ROWS / 2 * 2 * tiles::ROWS * depth + first / tiles::ROWS % 2 * Tiled::SIZE;
        const int64_t count = std::min<int64_t>(tiles::ROWS, rows - first);
        for (int64_t at = 0; at < depth; at += STEP, tile += 2 * Tiled::SIZE)
            for (int64_t row = 0; row < count; ++row)
                std::memcpy(tile + row * STEP, at_row(first + row) + at, STEP * sizeof(bfloat16));
    }
    return {out, depth};
}

// One step along K. between(0) to between(3) are called before and after products.
template <int HEIGHT, class Between>
inline void step(const TilePair& x, const bfloat16* panel, Between between) {
    constexpr int next = 2 * COLUMNS_OF_TILE;  // elements of a pair of the panel's rows
    tiles::load<4>(x.first, x.stride);
    tiles::load<6>(panel, PANEL_STRIDE);
    tiles::load<7>(panel + next, PANEL_STRIDE);
    between(0);
    tiles::multiply_add<0, 4, 6>();
    between(1);
    tiles::multiply_add<1, 4, 7>();
    if constexpr (HEIGHT == 1) {
        tiles::load<6>(panel + 2 * next, PANEL_STRIDE);
        tiles::load<7>(panel + 3 * next, PANEL_STRIDE);
        between(2);
        tiles::multiply_add<2, 4, 6>();
        between(3);
        tiles::multiply_add<3, 4, 7>();
    } else {
        tiles::load<5>(x.second, x.stride);
        between(2);
        tiles::multiply_add<2, 5, 6>();
        between(3);
        tiles::multiply_add<3, 5, 7>();
    }
}

// Fetches weights into the cache while others are multiplied: `lines` at each step along K of a strip, a quarter of them at
// a time, because tiles are loaded through the same few buffers.
struct Fetch {
    const char* at;
    int64_t lines;

    void quarter(int which) {
        for (int64_t left = (lines + 3 - which) / 4; left > 0; --left, at += LINE) simd::prefetch_far(at);
    }
};

// What to fetch during a product of `rows` with `length` elements of a panel. All its strips share the fetching of what is
// needed next: if each fetched what it reads, memory would wait for all but the first. One strip alone is so short that it
// fetches its own panel just ahead, unless that is in the cache.
template <class Next>
Fetch fetch_for(int64_t rows, const bfloat16* panel, int64_t length, const Next& next) {
    const int64_t strips = (rows + tiles::ROWS - 1) / tiles::ROWS, steps = std::max<int64_t>(1, length / STEP) * strips;
    const bool near = strips == 1 && next.follows_memory;
    return {static_cast<const char*>(near ? panel + AHEAD : next.at), (next.bytes / LINE + steps - 1) / steps};
}

// The last partial K-step, zero-padded to a whole one.
struct Rest {
    bfloat16 x[2 * tiles::ROWS * STEP] = {}, panel[STEP * COLUMNS] = {};
};

// The sums of 4 / HEIGHT column tiles, from `column` on, for up to 16 * HEIGHT rows. `first`: they begin at 0. expect(at) is
// called before the step at element `at`.
template <int HEIGHT, class Rows, class Expect>
void strip(const Rows& x, int64_t rows, const bfloat16* panel, int column, int64_t length, bool first, float* sums,
           Fetch& fetch, Expect expect) {
    float* place[4];
    for (int tile = 0; tile < 4; ++tile)
        place[tile] = sums + tile / (4 / HEIGHT) * tiles::ROWS * COLUMNS + tile % (4 / HEIGHT) * COLUMNS_OF_TILE + column;
    if (first) {
        tiles::zero<0>();
        tiles::zero<1>();
        tiles::zero<2>();
        tiles::zero<3>();
    } else {
        tiles::load<0>(place[0], SUMS_STRIDE);
        tiles::load<1>(place[1], SUMS_STRIDE);
        tiles::load<2>(place[2], SUMS_STRIDE);
        tiles::load<3>(place[3], SUMS_STRIDE);
    }
    int64_t at = 0;
    for (; at + STEP <= length; at += STEP) {
        const bfloat16* const weights = panel + at * COLUMNS;
        expect(at);
        step<HEIGHT>(tile_pair(x.from(0, at)), weights + 2 * column, [&](int which) { fetch.quarter(which); });
    }
    if constexpr (!std::is_same_v<Rows, Tiled>)
        if (at < length) {
            Rest rest;
            for (int64_t row = 0; row < rows; ++row)
                std::memcpy(rest.x + row * STEP, x.from(row, at).at, (length - at) * sizeof(bfloat16));
            std::memcpy(rest.panel, panel + at * COLUMNS, (length - at) * COLUMNS * sizeof(bfloat16));
            step<HEIGHT>(tile_pair(rows::RowMajor<bfloat16>{rest.x, STEP}), rest.panel + 2 * column, [](int) {});
        }
    tiles::store<0>(place[0], SUMS_STRIDE);
    tiles::store<1>(place[1], SUMS_STRIDE);
    tiles::store<2>(place[2], SUMS_STRIDE);
    tiles::store<3>(place[3], SUMS_STRIDE);
}

// sums [rows][64] += x [rows, length], RowMajor or Tiled, times `length` elements of a panel; `part`, `next` and `out` as in
// linear.h. Tiles are configured with the actual number of rows.
template <class Rows, class Part, class Next, class Out>
void rows_of(const Rows& x, int64_t rows, const bfloat16* panel, int64_t length, Part part, float* sums, const Next& next,
             const Out& out) {
    Fetch fetch = fetch_for(rows, panel, length, next);
    for (int64_t row = 0, shaped = 0; row < rows; row += 2 * tiles::ROWS) {
        const int64_t count = std::min<int64_t>(2 * tiles::ROWS, rows - row);
        const bool low = count <= tiles::ROWS;
        if (count != shaped) tiles::configure(low ? shapes_for<1>(count) : shapes_for<2>(count));
        shaped = count;
        const Rows some = x.from(row, 0);
        float* const place = sums + row * COLUMNS;
        const int64_t each = (count * STEP + length - 1) / length;  // rows of `out` to fetch at a step
        const auto expect = [&](int64_t at) {
            const int64_t first = at / STEP * each;
            if (part.last) out.fetch(row + std::min(first, count), row + std::min(first + each, count));
        };
        if (low) {
            strip<1>(some, count, panel, 0, length, part.first, place, fetch, expect);
        } else {
            strip<2>(some, count, panel, 0, length, part.first, place, fetch, expect);
            strip<2>(some, count, panel, COLUMNS / 2, length, part.first, place, fetch, [](int64_t) {});
        }
        if (part.last) out.store(row, row + count, place);
    }
    tiles::release();
}

}  // namespace amx
