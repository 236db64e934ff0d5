// bfloat16 products by AMX for linear.h. A panel, [k / 2][64 columns][2], is the layout of four adjacent weight tiles.
// Batch invariance: an output sums along K in steps of 32 for any number of rows; the rows of a tile are independent.
#pragma once
#include <algorithm>
#include <type_traits>

#include "simd.h"
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

// One step along K. x_stride in bytes. between(0) to between(3) are called before and after products.
template <int HEIGHT, class Between>
inline void step(const bfloat16* x, int64_t x_stride, const bfloat16* panel, Between between) {
    constexpr int next = 2 * COLUMNS_OF_TILE;  // elements of a pair of the panel's rows
    tiles::load<4>(x, x_stride);
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
        tiles::load<5>(reinterpret_cast<const char*>(x) + tiles::ROWS * x_stride, x_stride);
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
template <int HEIGHT, class Expect>
void strip(const bfloat16* x, int64_t x_stride, int64_t rows, const bfloat16* panel, int column, int64_t length,
           bool first, float* sums, Fetch& fetch, Expect expect) {
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
        step<HEIGHT>(x + at, x_stride * sizeof(bfloat16), weights + 2 * column, [&](int which) { fetch.quarter(which); });
    }
    if (at < length) {
        Rest rest;
        for (int64_t row = 0; row < rows; ++row)
            std::memcpy(rest.x + row * STEP, x + row * x_stride + at, (length - at) * sizeof(bfloat16));
        std::memcpy(rest.panel, panel + at * COLUMNS, (length - at) * COLUMNS * sizeof(bfloat16));
        step<HEIGHT>(rest.x, STEP * sizeof(bfloat16), rest.panel + 2 * column, [](int) {});
    }
    tiles::store<0>(place[0], SUMS_STRIDE);
    tiles::store<1>(place[1], SUMS_STRIDE);
    tiles::store<2>(place[2], SUMS_STRIDE);
    tiles::store<3>(place[3], SUMS_STRIDE);
}

// sums [rows][64] += x [rows, length] times `length` elements of a panel; `part`, `next` and `out` as in linear.h;
// x_stride in elements. Tiles are configured with the actual number of rows.
template <class Part, class Next, class Out>
void rows_of(const bfloat16* x, int64_t x_stride, int64_t rows, const bfloat16* panel, int64_t length, Part part,
             float* sums, const Next& next, const Out& out) {
    Fetch fetch = fetch_for(rows, panel, length, next);
    for (int64_t row = 0, shaped = 0; row < rows; row += 2 * tiles::ROWS) {
        const int64_t count = std::min<int64_t>(2 * tiles::ROWS, rows - row);
        const bool low = count <= tiles::ROWS;
        if (count != shaped) tiles::configure(low ? shapes_for<1>(count) : shapes_for<2>(count));
        shaped = count;
        const bfloat16* const some = x + row * x_stride;
        float* const place = sums + row * COLUMNS;
        const int64_t each = (count * STEP + length - 1) / length;  // rows of `out` to fetch at a step
        const auto expect = [&](int64_t at) {
            const int64_t first = at / STEP * each;
            if (part.last) out.fetch(row + std::min(first, count), row + std::min(first + each, count));
        };
        if (low) {
            strip<1>(some, x_stride, count, panel, 0, length, part.first, place, fetch, expect);
        } else {
            strip<2>(some, x_stride, count, panel, 0, length, part.first, place, fetch, expect);
            strip<2>(some, x_stride, count, panel, COLUMNS / 2, length, part.first, place, fetch, [](int64_t) {});
        }
        if (part.last) out.store(row, row + count, place);
    }
    tiles::release();
}

}  // namespace amx
