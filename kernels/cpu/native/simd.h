// A vector of sixteen floats on every instruction set, and the functions that are built from its operations.
#pragma once
#include <algorithm>

#if defined(__AVX512BF16__)
#include "simd_avx512.h"
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include "simd_avx2.h"
#else
#include "simd_portable.h"
#endif

namespace simd {

constexpr int LANES = 16;

// Elements along K per lane of a product operand.
template <class T>
constexpr int STEP = 1;
template <>
inline constexpr int STEP<bfloat16> = 2;

// The first `count` (1 to 16) elements, zeros in the other lanes.
template <class T>
inline Floats load_first(const T* p, int count) {
    if (count >= LANES) return load(p);
    T padded[LANES] = {};
    std::memcpy(padded, p, count * sizeof(T));
    return load(padded);
}

template <class T>
inline void store_first(T* p, const Floats& a, int count) {
    if (count >= LANES) return store(p, a);
    T padded[LANES];
    store(padded, a);
    std::memcpy(p, padded, count * sizeof(T));
}

// Sum of all lanes, always in the same order.
inline float sum(const Floats& a) {
#if defined(__AVX512F__)
    return _mm512_reduce_add_ps(a);  // same order as below
#else
    float lanes[LANES];
    store(lanes, a);
    for (int width = LANES / 2; width > 0; width /= 2)
        for (int i = 0; i < width; ++i) lanes[i] += lanes[i + width];
    return lanes[0];
#endif
}

// The largest lane; undefined if a lane is NaN.
inline float largest(const Floats& a) {
#if defined(__AVX512F__)
    return _mm512_reduce_max_ps(a);
#else
    float lanes[LANES];
    store(lanes, a);
    return *std::max_element(lanes, lanes + LANES);
#endif
}

// e^x to about one unit in the last place; 0 below -87 (and for -inf), e^88 above 88, NaN for NaN. The polynomial is that
// of Cephes' expf.
inline Floats exp(const Floats& x) {
    constexpr float least = -87.0f;
    const Floats bounded = min(broadcast(88.0f), max(broadcast(least), x));
    const Floats n = round(mul(bounded, broadcast(1.44269504088896341f)));
    const Floats r = fma(n, broadcast(2.12194440e-4f), fma(n, broadcast(-0.693359375f), bounded));
    Floats p = broadcast(1.9875691500e-4f);
    for (float coefficient : {1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f})
        p = fma(p, r, broadcast(coefficient));
    const Floats value = add(fma(p, mul(r, r), r), broadcast(1.0f));
    return zero_below(scale_by_power(value, n), x, least);
}

// The hyperbolic tangent, to an absolute error of about 1e-7. NaN for NaN.
inline Floats tanh(const Floats& x) {
    const Floats one = broadcast(1.0f), two = broadcast(2.0f);
    return sub(one, div(two, add(one, exp(mul(two, x)))));
}

}  // namespace simd
