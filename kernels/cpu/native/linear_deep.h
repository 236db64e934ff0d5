// Products of many rows that are too long for the second cache, by AMX: parts of K outermost. A task makes tiles of a part of
// its rows, multiplies them with its panels, and keeps the sums of all of them. Otherwise each panel would read the rows again
// from beyond the cache. The order of an output's sum is that of linear.h.
#pragma once
#include "buffer.h"
#include "linear.h"

namespace linear {

constexpr int64_t MANY_ROWS = 64;     // a product of fewer waits for weights
constexpr int64_t PART_K = 1024;      // 512 KiB of tiles
constexpr int64_t MOST_PANELS = 9;    // of a task: 576 KiB of sums
constexpr int64_t FEWEST_PANELS = 4;  // for fewer, tiles take longer than they save

// Whether a product of `count` panels goes by deep_product().
template <class T>
bool is_deep(int64_t rows, int64_t k, int64_t count) {
    if constexpr (amx::MULTIPLIES<T>)
        return rows >= MANY_ROWS && k > BLOCK_K && k % amx::STEP == 0 && count >= FEWEST_PANELS;
    else
        return false;
}

// Multiplies up to BLOCK_ROWS rows of x [rows, k] with `count` panels, up to MOST_PANELS. weights(i): the i-th panel;
// weights(count): what is read next. place(i): a PanelOf, or what does the same.
template <class T, class Weights, class Place>
void deep_product(RowMajor<T> x, int64_t rows, int64_t k, int64_t count, Weights weights, Place place) {
    if constexpr (amx::MULTIPLIES<T>) {
        thread_local Buffer<T> tiles(BLOCK_ROWS * PART_K);
        thread_local Buffer<float> sums(MOST_PANELS * BLOCK_ROWS * PANEL);
        for (int64_t from = 0; from < k; from += PART_K) {
            const int64_t length = std::min(PART_K, k - from);
            const Part part{from == 0, from + length == k};
            const auto some = amx::tile_rows(rows, length, [=](int64_t row) { return x.from(row, from).at; }, tiles.data());
            for (int64_t i = 0; i < count; ++i) {
                const T* const after = i + 1 < count ? weights(i + 1) + from * PANEL
                                       : part.last   ? weights(count)
                                                     : weights(0) + (from + length) * PANEL;
                rows_of<T>(some, rows, Packed<T>{weights(i) + from * PANEL, after}, length, part,
                           sums.data() + i * BLOCK_ROWS * PANEL, place(i));
            }
        }
    }
}

}  // namespace linear
