// A weight as Python passes it (kernels/cpu/matrix.py): packed in the activations' dtype, or int8.
#pragma once
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
};

// One panel of multiply() for at most BLOCK_ROWS rows. `after`: the weights that are read next; null: those that follow. It
// is for those of the activations' dtype: int8 weights are widened, and what follows them is fetched.
template <class T, class Out>
void multiply_panel(const T* x, int64_t x_stride, int64_t rows, const Matrix& matrix, const float* bias, int64_t panel,
                    Out* out, const void* after = nullptr) {
    const int64_t n = matrix.n, k = matrix.k;
    if (matrix.is_int8())
        panel_product_int8(x, x_stride, rows, matrix.weights<int8_t>(), matrix.scale(), bias, n, k, panel, out, n);
    else
        panel_product(x, x_stride, rows, matrix.weights<T>(), bias, n, k, panel, out, n, after);
}

// out [rows, n] = x [rows, k] @ weight [n, k].T + bias [n]; rows of x are `x_stride` elements apart; bias may be null.
template <class T, class Out>
void multiply(const T* x, int64_t x_stride, int64_t rows, const Matrix& matrix, const float* bias, Out* out) {
    const int64_t blocks = (rows + BLOCK_ROWS - 1) / BLOCK_ROWS, count = panels(matrix.n);
    Pool::instance().run(blocks * count, [=, &matrix](int64_t task, int) {
        const int64_t first = task / count * BLOCK_ROWS, some = std::min(rows - first, BLOCK_ROWS);
        multiply_panel(x + first * x_stride, x_stride, some, matrix, bias, task % count, out + first * matrix.n);
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
