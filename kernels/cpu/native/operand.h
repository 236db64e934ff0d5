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

// out [rows, n] = x [rows, k] @ weight [n, k].T + bias [n]; rows of x are `x_stride` elements apart; bias may be null.
template <class T, class Out>
void multiply(const T* x, int64_t x_stride, int64_t rows, const Matrix& matrix, const float* bias, Out* out) {
    const int64_t n = matrix.n, k = matrix.k;
    if (matrix.is_int8())
        product_int8(x, x_stride, rows, matrix.weights<int8_t>(), matrix.scale(), bias, n, k, out, n);
    else
        product(x, x_stride, rows, matrix.weights<T>(), bias, n, k, out, n);
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
