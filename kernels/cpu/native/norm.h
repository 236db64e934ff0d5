// RMS norm and layer norm of rows, or of parts of rows; with and without a sum before it. Twins: kernels/reference.py.
#pragma once
#include <cmath>

#include "rows.h"

namespace norm {

// How a part of `size` elements is normalised.
struct Weights {
    const float *weight, *bias;  // bias may be null
    int64_t size;
    float eps;
    bool centred;  // layer norm
};

// 1 / sqrt(mean square of `size` floats + eps).
inline float inverse_rms(const float* x, int64_t size, float eps) {
    simd::Floats squares = simd::zero();
    rows::each_vector(size, [&](int64_t at, int count) {
        const simd::Floats part = simd::load_first(x + at, count);
        squares = simd::fma(part, part, squares);
    });
    return 1.0f / std::sqrt(simd::sum(squares) / float(size) + eps);
}

// Takes the mean of `size` floats away from each.
inline void centre(float* x, int64_t size) {
    simd::Floats total = simd::zero();
    rows::each_vector(size, [&](int64_t at, int count) { total = simd::add(total, simd::load_first(x + at, count)); });
    const simd::Floats mean = simd::broadcast(simd::sum(total) / float(size));
    rows::each_vector(size, [&](int64_t at, int count) {
        simd::store_first(x + at, simd::sub(simd::load_first(x + at, count), mean), count);
    });
}

// out = norm of x, which is overwritten.
template <class Out>
void part(float* x, const Weights& with, Out* out) {
    if (with.centred) centre(x, with.size);
    const simd::Floats factor = simd::broadcast(inverse_rms(x, with.size, with.eps));
    rows::each_vector(with.size, [&](int64_t at, int count) {
        const simd::Floats scaled = simd::mul(simd::load_first(x + at, count), factor);
        simd::Floats value = simd::mul(scaled, simd::load_first(with.weight + at, count));
        if (with.bias != nullptr) value = simd::add(value, simd::load_first(with.bias + at, count));
        simd::store_first(out + at, value, count);
    });
}

inline float* workspace(int64_t size) {
    thread_local std::vector<float> wide;
    if (int64_t(wide.size()) < size) wide.resize(size);
    return wide.data();
}

// Normalises `groups` parts of each row, one behind the other; part i with the weights at i * weight_stride. Strides in
// elements; in place if out is x.
template <class T>
void each(const T* x, int64_t x_stride, Weights with, int64_t groups, int64_t weight_stride, int64_t rows, T* out,
          int64_t out_stride) {
    rows::each_row(rows, [=](int64_t row) {
        float* const wide = workspace(with.size);
        for (int64_t group = 0; group < groups; ++group) {
            Weights own = with;
            own.weight += group * weight_stride;
            if (own.bias != nullptr) own.bias += group * weight_stride;
            rows::convert(x + row * x_stride + group * with.size, with.size, wide);
            part(wide, own, out + row * out_stride + group * with.size);
        }
    });
}

// total = residual + factor * x, rounded to T, and out = norm of total. All [rows, size]; x has a stride.
template <class T>
void add(const T* x, int64_t x_stride, const T* residual, float factor, const Weights& with, int64_t rows, T* out,
         T* total) {
    rows::each_row(rows, [=](int64_t row) {
        float* const wide = workspace(with.size);
        const simd::Floats times = simd::broadcast(factor);
        rows::each_vector(with.size, [&](int64_t at, int count) {
            T* const sum = total + row * with.size + at;
            const simd::Floats before = simd::load_first(residual + row * with.size + at, count);
            simd::store_first(sum, simd::fma(simd::load_first(x + row * x_stride + at, count), times, before), count);
            simd::store_first(wide + at, simd::load_first(sum, count), count);
        });
        part(wide, with, out + row * with.size);
    });
}

// residual += factor * x, rounded to T; all [rows, size].
template <class T>
void only_add(const T* x, float factor, int64_t rows, int64_t size, T* residual) {
    rows::each_row(rows, [=](int64_t row) {
        const simd::Floats times = simd::broadcast(factor);
        rows::each_vector(size, [&](int64_t at, int count) {
            T* const sum = residual + row * size + at;
            const simd::Floats added = simd::load_first(x + row * size + at, count);
            simd::store_first(sum, simd::fma(added, times, simd::load_first(sum, count)), count);
        });
    });
}

}  // namespace norm
