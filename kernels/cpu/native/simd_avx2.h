// Sixteen floats in two AVX2 registers; a bfloat16 product is two fused multiply-adds per pair.
#pragma once
#include <immintrin.h>

#include "types.h"

namespace simd {

constexpr const char* NAME = "avx2";
constexpr int TILE_ROWS = 5;
constexpr int TILE_VECTORS = 1;

struct Floats {
    __m256 low, high;
};

inline Floats zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
inline Floats broadcast(float value) { return {_mm256_set1_ps(value), _mm256_set1_ps(value)}; }
inline Floats add(Floats a, Floats b) { return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)}; }
inline Floats sub(Floats a, Floats b) { return {_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high)}; }
inline Floats mul(Floats a, Floats b) { return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)}; }
inline Floats div(Floats a, Floats b) { return {_mm256_div_ps(a.low, b.low), _mm256_div_ps(a.high, b.high)}; }
// b if either is NaN
inline Floats max(Floats a, Floats b) { return {_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high)}; }
inline Floats min(Floats a, Floats b) { return {_mm256_min_ps(a.low, b.low), _mm256_min_ps(a.high, b.high)}; }
inline Floats fma(Floats a, Floats b, Floats c) {
    return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
}
inline Floats round(Floats a) {
    constexpr int nearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    return {_mm256_round_ps(a.low, nearest), _mm256_round_ps(a.high, nearest)};
}
inline Floats zero_below(Floats a, Floats value, float least) {
    const __m256 limit = _mm256_set1_ps(least);
    return {_mm256_and_ps(a.low, _mm256_cmp_ps(value.low, limit, _CMP_NLT_UQ)),
            _mm256_and_ps(a.high, _mm256_cmp_ps(value.high, limit, _CMP_NLT_UQ))};
}
inline __m256 within(__m256 a, __m256i lanes, int from, int to, float rest) {
    const __m256i below = _mm256_cmpgt_epi32(_mm256_set1_epi32(to), lanes);
    const __m256i skipped = _mm256_cmpgt_epi32(_mm256_set1_epi32(from), lanes);
    return _mm256_blendv_ps(_mm256_set1_ps(rest), a, _mm256_castsi256_ps(_mm256_andnot_si256(skipped, below)));
}
inline Floats within(Floats a, int from, int to, float rest) {
    const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return {within(a.low, lanes, from, to, rest),
            within(a.high, _mm256_add_epi32(lanes, _mm256_set1_epi32(8)), from, to, rest)};
}
inline __m256 power(__m256 n) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23));
}
inline Floats scale_by_power(Floats a, Floats n) {
    return {_mm256_mul_ps(a.low, power(n.low)), _mm256_mul_ps(a.high, power(n.high))};
}

inline __m128i half_of(const void* p, int which) {
    return _mm_loadu_si128(static_cast<const __m128i*>(p) + which);
}
inline __m256 widened(__m128i bits) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}
inline Floats load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
inline Floats load(const bfloat16* p) { return {widened(half_of(p, 0)), widened(half_of(p, 1))}; }
inline Floats load(const float16* p) { return {_mm256_cvtph_ps(half_of(p, 0)), _mm256_cvtph_ps(half_of(p, 1))}; }
inline void store(float* p, Floats a) {
    _mm256_storeu_ps(p, a.low);
    _mm256_storeu_ps(p + 8, a.high);
}
inline void store(bfloat16* p, Floats a) {
    float values[16];
    store(values, a);
    for (int lane = 0; lane < 16; ++lane) narrow(values[lane], p + lane);
}
inline void store(float16* p, Floats a) {
    __m128i* out = reinterpret_cast<__m128i*>(p);
    _mm_storeu_si128(out, _mm256_cvtps_ph(a.low, _MM_FROUND_TO_NEAREST_INT));
    _mm_storeu_si128(out + 1, _mm256_cvtps_ph(a.high, _MM_FROUND_TO_NEAREST_INT));
}

struct Pairs {
    Floats even, odd;
};
inline Floats columns(const float* p) { return load(p); }
inline Floats columns(const float16* p) { return load(p); }
inline Pairs columns(const bfloat16* p) {
    const __m256i low = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    const __m256i high = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p) + 1);
    const __m256i upper = _mm256_set1_epi32(int(0xffff0000));
    return {{_mm256_castsi256_ps(_mm256_slli_epi32(low, 16)), _mm256_castsi256_ps(_mm256_slli_epi32(high, 16))},
            {_mm256_castsi256_ps(_mm256_and_si256(low, upper)), _mm256_castsi256_ps(_mm256_and_si256(high, upper))}};
}
// int8 operands: place() is the byte index, within its vector, of element `part` of a column.
template <class T>
constexpr int WIDENED = 1;
template <class T>
constexpr int place(int, int column, int part) {
    return part * 16 + column;
}
inline __m256 eight(const int8_t* p) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
}
inline void widen_int8(const int8_t* p, Floats* out) { *out = {eight(p), eight(p + 8)}; }
inline void widen_int8(const int8_t* p, Pairs* out) {
    widen_int8(p, &out->even);
    widen_int8(p + 16, &out->odd);
}
inline Floats element(const float* p) { return broadcast(*p); }
inline Floats element(const float16* p) { return broadcast(_cvtsh_ss(p->bits)); }
inline Pairs element(const bfloat16* p) { return {broadcast(widen(p[0])), broadcast(widen(p[1]))}; }
// Zeros in place of the odd elements, and of the even ones.
inline Pairs even(Pairs a) { return {a.even, zero()}; }
inline Pairs odd(Pairs a) { return {zero(), a.odd}; }
inline Floats mac(Floats sum, Floats a, Floats b) { return fma(a, b, sum); }
inline Floats mac(Floats sum, Pairs a, Pairs b) { return fma(a.odd, b.odd, fma(a.even, b.even, sum)); }

// See simd_avx512.h.
template <class T>
inline void transpose(const T* in, int64_t in_stride, T* out, int64_t out_stride) {
    constexpr int size = 4 / sizeof(T);
    for (int i = 0; i < 16; ++i)
        for (int j = 0; j < 16; ++j)
            std::memcpy(static_cast<void*>(out + i * out_stride + j * size), in + j * in_stride + i * size, 4);
}

inline void drain() {}

inline void prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0); }
inline void relax() { _mm_pause(); }

}  // namespace simd
