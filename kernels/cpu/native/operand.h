// A weight as Python passes it (kernels/cpu/matrix.py): packed in the activations' dtype, or int8.
#pragma once
#include "linear_deep.h"
#include "linear_int8.h"

namespace linear {

struct Matrix {
    int64_t n, k;
    int64_t packed, scales;  // addresses; scales 0: not quantised

    bool is_int8() const { return scales != 0; }
    const float* scale() const { return reinterpret_cast<const float*>(scales); }
    template <class T>
    const T* weights() const {
        return reinterpret_cast<const T*>(packed);
    }
    // A panel's weights, of type T.
    template <class T>
    const T* panel(int64_t panel) const {
        return weights<T>() + panel * PANEL * k;
    }
    // Where a panel of the product goes: its first column is at `out`, whose rows are `stride` elements apart. bias [n] may be
    // null.
    template <class Out>
    PanelOf<Out> place(int64_t panel, const float* bias, Out* out, int64_t stride) const {
        return PanelOf<Out>::at(panel, n, scale(), bias, out, stride);
    }
};

// A panel of x [rows, k] @ weight.T for at most BLOCK_ROWS rows; x is RowMajor or amx::Tiled, `out` a PanelOf or what does the
// same. `after`: the weights that are read next; null: those that follow. It is for those of the activations' dtype: int8
// weights are widened, and what follows them is fetched.
template <class T, class Rows, class Out>
void multiply_panel(const Rows& x, int64_t rows, const Matrix& matrix, int64_t panel, const Out& out,
                    const void* after = nullptr) {
    if (matrix.is_int8())
        panel_product_int8<T>(x, rows, matrix.panel<int8_t>(panel), matrix.k, out);
    else
        panel_product<T>(x, rows, matrix.panel<T>(panel), matrix.k, out, after);
}

// `count` panels of x [rows, k] @ weight.T for at most BLOCK_ROWS rows: panel(i) is the i-th, panel(count) the one that is read
// next; place(i): where the i-th goes.
template <class T, class Panel, class Place>
void multiply_panels(RowMajor<T> x, int64_t rows, const Matrix& matrix, int64_t count, Panel panel, Place place) {
    if (!matrix.is_int8() && is_deep<T>(rows, matrix.k, count))
        return deep_product(x, rows, matrix.k, count, [&](int64_t i) { return matrix.panel<T>(panel(i)); }, place);
    for (int64_t i = 0; i < count; ++i)
        multiply_panel<T>(x, rows, matrix, panel(i), place(i), matrix.panel<T>(panel(i + 1)));
}

// Calls work(row, rows, first, count) for tasks of up to BLOCK_ROWS rows and some of `count` panels, in parallel. `most`:
// panels of a task, if the product is deep and there are enough tasks.
template <class T, class F>
void each_task(int64_t rows, int64_t k, int64_t count, int64_t most, F&& work) {
    const int64_t blocks = (rows + BLOCK_ROWS - 1) / BLOCK_ROWS;
    const int64_t some = std::min(most, blocks * count / Pool::instance().num_threads());
    const int64_t groups = is_deep<T>(rows, k, some) ? (count + some - 1) / some : count;
    Pool::instance().run(blocks * groups, [=, &work](int64_t task, int) {
        const int64_t row = task / groups * BLOCK_ROWS, group = task % groups, first = count * group / groups;
        work(row, std::min(rows - row, BLOCK_ROWS), first, count * (group + 1) / groups - first);
    });
}

// out [rows, n] = x [rows, k] @ weight [n, k].T + bias [n]; rows of x are `x_stride` elements apart; bias may be null.
template <class T, class Out>
void multiply(const T* x, int64_t x_stride, int64_t rows, const Matrix& matrix, const float* bias, Out* out) {
    const int64_t n = matrix.n;
    each_task<T>(rows, matrix.k, panels(n), MOST_PANELS, [=](int64_t row, int64_t some, int64_t first, int64_t count) {
        multiply_panels(
            RowMajor<T>{x + row * x_stride, x_stride}, some, matrix, count, [=](int64_t i) { return first + i; },
            [=](int64_t i) { return matrix.place(first + i, bias, out + row * n + (first + i) * PANEL, n); });
    });
}

// Rows `ids` of the weight: embedding lookup in a tied output head.
template <class T>
void rows_of(const Matrix& matrix, const int64_t* ids, int64_t count, T* out) {
    if (matrix.is_int8())
        dequantised_rows(matrix.weights<int8_t>(), matrix.scale(), matrix.k, ids, count, out);
    else
        unpack_rows(matrix.weights<T>(), matrix.k, ids, count, out);
}

}  // namespace linear
