// Loops over the rows of an activation, and over the vectors of a row. Batch-invariant: each row is reduced by one thread in
// a fixed order.
#pragma once
#include "pool.h"
#include "simd.h"

namespace rows {

// Rows of a matrix, `stride` elements apart.
template <class T>
struct RowMajor {
    const T* at;
    int64_t stride;

    // The same from an element on.
    RowMajor from(int64_t row, int64_t column) const { return {at + row * stride + column, stride}; }
};

constexpr int64_t PER_TASK = 8;

// Calls work(first, last) for chunks of rows, in parallel.
template <class F>
void each_rows(int64_t rows, F&& work) {
    Pool::instance().run((rows + PER_TASK - 1) / PER_TASK, [&](int64_t task, int) {
        work(task * PER_TASK, std::min(rows, (task + 1) * PER_TASK));
    });
}

template <class F>
void each_row(int64_t rows, F&& work) {
    each_rows(rows, [&](int64_t first, int64_t last) {
        for (int64_t row = first; row < last; ++row) work(row);
    });
}

// Calls work(at, count) for each vector of `size` elements; `count` is smaller than LANES only in the last one.
template <class F>
void each_vector(int64_t size, F&& work) {
    for (int64_t at = 0; at < size; at += simd::LANES) work(at, int(std::min<int64_t>(simd::LANES, size - at)));
}

// out = x, `size` elements, from one element type to another.
template <class From, class To>
void convert(const From* x, int64_t size, To* out) {
    each_vector(size, [=](int64_t at, int count) { simd::store_first(out + at, simd::load_first(x + at, count), count); });
}

}  // namespace rows
