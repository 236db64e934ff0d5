// AMX tiles in plain C++, after the pseudocode of Intel's manual, with the same order of additions. Subnormals are not
// flushed to zero. An operand that the instruction would reject aborts the process.
#pragma once
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "tiles.h"
#include "types.h"

namespace tiles {

constexpr const char* NAME = "amx-emulated";
constexpr int NUM_TILES = 8;

struct State {
    bool configured = false;
    Shapes shapes;
    alignas(64) uint8_t data[NUM_TILES][ROWS][BYTES];
};
inline thread_local State state;

inline void require(bool right, const char* what) {
    if (right) return;
    std::fprintf(stderr, "emulated tiles: %s\n", what);
    std::abort();
}

inline void configure(const Shapes& shapes) {
    require(shapes.palette == 1 && shapes.start_row == 0, "palette");
    for (int tile = 0; tile < 16; ++tile) {
        require(shapes.rows[tile] <= ROWS && shapes.row_bytes[tile] <= BYTES, "shape");
        require(!shapes.rows[tile] == !shapes.row_bytes[tile] && (tile < NUM_TILES || !shapes.rows[tile]), "shape");
    }
    state = {true, shapes, {}};
}
inline void release() { state = {}; }

inline int rows_of(int tile) {
    require(state.configured && state.shapes.rows[tile] > 0, "a tile without a shape");
    return state.shapes.rows[tile];
}

template <int TILE>
inline void load(const void* first, int64_t stride) {
    const int rows = rows_of(TILE);
    std::memset(state.data[TILE], 0, sizeof state.data[TILE]);
    for (int row = 0; row < rows; ++row)
        std::memcpy(state.data[TILE][row], static_cast<const char*>(first) + row * stride, state.shapes.row_bytes[TILE]);
}
template <int TILE>
inline void store(void* first, int64_t stride) {
    for (int row = 0; row < rows_of(TILE); ++row)
        std::memcpy(static_cast<char*>(first) + row * stride, state.data[TILE][row], state.shapes.row_bytes[TILE]);
}
template <int TILE>
inline void zero() {
    rows_of(TILE);
    std::memset(state.data[TILE], 0, sizeof state.data[TILE]);
}

template <int SUM, int X, int W>
inline void multiply_add() {
    constexpr int pairs = BYTES / 4, columns = BYTES / 4;
    static_assert(SUM != X && SUM != W && X != W);
    require(rows_of(SUM) == rows_of(X) && rows_of(W) * 4 == state.shapes.row_bytes[X], "shapes of a product");
    for (int row = 0; row < rows_of(SUM); ++row) {
        bfloat16 x[2 * pairs], w[2 * columns];
        float products[2 * columns] = {}, sums[columns];
        std::memcpy(x, state.data[X][row], sizeof x);
        for (int pair = 0; pair < pairs; ++pair) {
            std::memcpy(w, state.data[W][pair], sizeof w);
            for (int i = 0; i < 2 * columns; ++i)
                products[i] = __builtin_fmaf(widen(x[2 * pair + i % 2]), widen(w[i]), products[i]);
        }
        std::memcpy(sums, state.data[SUM][row], sizeof sums);
        for (int column = 0; column < columns; ++column) sums[column] += products[2 * column] + products[2 * column + 1];
        std::memcpy(state.data[SUM][row], sums, sizeof sums);
    }
}

}  // namespace tiles
