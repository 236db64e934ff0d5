// A product and the gated activation of its halves in one pass: what is activated lies in a core's cache.
#pragma once
#include "activation.h"
#include "operand.h"

namespace gated {

using linear::BLOCK_ROWS;
using linear::PANEL;

constexpr int64_t WIDTH = 2 * PANEL;                     // of a panel of gate and one of up, side by side
constexpr int64_t MOST_PAIRS = linear::MOST_PANELS / 2;  // of these panels, of a task

// Where a panel of gate or up goes. With the latter, rows are complete: they are activated.
template <class T>
struct Half {
    linear::PanelOf<T> panel;
    bool is_up;
    const T* wide;  // [rows][WIDTH]
    T* out;
    int64_t stride;
    activation::Form form;

    void fetch(int64_t first, int64_t last) const {
        (is_up ? linear::PanelOf<T>{out, stride, PANEL, nullptr, nullptr} : panel).fetch(first, last);
    }

    void store(int64_t first, int64_t last, const float* sums) const {
        panel.store(first, last, sums);
        if (is_up)
            for (int64_t row = first; row < last; ++row)
                activation::activate_row(wide + row * WIDTH, form, PANEL, out + row * stride);
    }
};

// Whether multiply() is for this product: with few rows, weights are read faster one after the other.
inline bool fits(int64_t rows, const linear::Matrix& matrix) { return rows >= linear::MANY_ROWS && matrix.n % WIDTH == 0; }

// out [rows, size] = the activation of x [rows, k] @ weight [2 * size, k].T + bias [2 * size], each half rounded to T before;
// bias may be null.
template <class T>
void multiply(const T* x, int64_t x_stride, int64_t rows, const linear::Matrix& matrix, const float* bias,
              const activation::Form& form, T* out) {
    const int64_t size = matrix.n / 2, pairs = size / PANEL;
    linear::each_task<T>(rows, matrix.k, pairs, MOST_PAIRS, [=](int64_t row, int64_t some, int64_t first, int64_t count) {
        thread_local Buffer<T> wide(MOST_PAIRS * BLOCK_ROWS * WIDTH);
        T* const room = wide.data();
        const auto panel = [=](int64_t i) { return first + i / 2 + i % 2 * pairs; };
        linear::multiply_panels(
            linear::RowMajor<T>{x + row * x_stride, x_stride}, some, matrix, 2 * count, panel, [=](int64_t i) {
                T* const own = room + i / 2 * BLOCK_ROWS * WIDTH;
                return Half<T>{matrix.place(panel(i), bias, own + i % 2 * PANEL, WIDTH), i % 2 == 1, own,
                               out + row * size + (first + i / 2) * PANEL, size, form};
            });
    });
}

}  // namespace gated
