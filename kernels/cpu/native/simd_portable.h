// Sixteen floats as an array, for any CPU. Multiplication and addition round separately: fma is not fused.
#pragma once
#include <cmath>

#include "types.h"

namespace simd {

constexpr const char* NAME = "portable";
constexpr int TILE_ROWS = 4;
constexpr int TILE_VECTORS = 1;

struct Floats {
    float lane[16];
};

template <class F>
inline Floats each(F f) {
    Floats result;
    for (int i = 0; i < 16; ++i) result.lane[i] = f(i);
    return result;
}

inline Floats broadcast(float value) {
    return each([=](int) { return value; });
}
inline Floats zero() { return broadcast(0.0f); }
inline Floats add(const Floats& a, const Floats& b) {
    return each([&](int i) { return a.lane[i] + b.lane[i]; });
}
inline Floats sub(const Floats& a, const Floats& b) {
    return each([&](int i) { return a.lane[i] - b.lane[i]; });
}
inline Floats mul(const Floats& a, const Floats& b) {
    return each([&](int i) { return a.lane[i] * b.lane[i]; });
}
inline Floats div(const Floats& a, const Floats& b) {
    return each([&](int i) { return a.lane[i] / b.lane[i]; });
}
// b if either is NaN
inline Floats max(const Floats& a, const Floats& b) {
    return each([&](int i) { return a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i]; });
}
inline Floats min(const Floats& a, const Floats& b) {
    return each([&](int i) { return a.lane[i] < b.lane[i] ? a.lane[i] : b.lane[i]; });
}
inline Floats fma(const Floats& a, const Floats& b, const Floats& c) {
    return each([&](int i) { return a.lane[i] * b.lane[i] + c.lane[i]; });
}
inline Floats round(const Floats& a) {
    return each([&](int i) { return std::nearbyintf(a.lane[i]); });
}
inline Floats zero_below(const Floats& a, const Floats& value, float least) {
    return each([&](int i) { return value.lane[i] < least ? 0.0f : a.lane[i]; });
}
inline Floats within(const Floats& a, int from, int to, float rest) {
    return each([&](int i) { return i >= from && i < to ? a.lane[i] : rest; });
}
inline Floats scale_by_power(const Floats& a, const Floats& n) {
    return each([&](int i) { return a.lane[i] * from_bits(uint32_t(int32_t(n.lane[i]) + 127) << 23); });
}

template <class T>
inline Floats load(const T* p) {
    return each([=](int i) { return widen(p[i]); });
}
template <class T>
inline void store(T* p, const Floats& a) {
    for (int i = 0; i < 16; ++i) narrow(a.lane[i], p + i);
}

struct Pairs {
    Floats even, odd;
};
template <class T>
inline Floats columns(const T* p) {
    return load(p);
}
inline Pairs columns(const bfloat16* p) {
    return {each([=](int i) { return widen(p[2 * i]); }), each([=](int i) { return widen(p[2 * i + 1]); })};
}
// int8 operands: place() is the byte index, within its vector, of element `part` of a column.
template <class T>
constexpr int WIDENED = 1;
template <class T>
constexpr int place(int, int column, int part) {
    return part * 16 + column;
}
inline void widen_int8(const int8_t* p, Floats* out) {
    *out = each([=](int i) { return float(p[i]); });
}
inline void widen_int8(const int8_t* p, Pairs* out) {
    widen_int8(p, &out->even);
    widen_int8(p + 16, &out->odd);
}
template <class T>
inline Floats element(const T* p) {
    return broadcast(widen(*p));
}
inline Pairs element(const bfloat16* p) { return {broadcast(widen(p[0])), broadcast(widen(p[1]))}; }
// Zeros in place of the odd elements, and of the even ones.
inline Pairs even(const Pairs& a) { return {a.even, zero()}; }
inline Pairs odd(const Pairs& a) { return {zero(), a.odd}; }
inline Floats mac(const Floats& sum, const Floats& a, const Floats& b) { return fma(a, b, sum); }
inline Floats mac(const Floats& sum, const Pairs& a, const Pairs& b) {
    return fma(a.odd, b.odd, fma(a.even, b.even, sum));
}

// See simd_avx512.h.
template <class T>
inline void transpose(const T* in, int64_t in_stride, T* out, int64_t out_stride) {
    constexpr int size = 4 / sizeof(T);
    for (int i = 0; i < 16; ++i)
        for (int j = 0; j < 16; ++j)
            std::memcpy(static_cast<void*>(out + i * out_stride + j * size), in + j * in_stride + i * size, 4);
}

inline void drain() {}

inline void prefetch(const void*) {}
inline void relax() {}

}  // namespace simd
