// Sixteen floats in one AVX-512 register; bfloat16 products by VDPBF16PS.
#pragma once
#include <immintrin.h>

#include "types.h"

namespace simd {

constexpr const char* NAME = "avx512bf16";
constexpr int TILE_ROWS = 6;     // rows of a register tile of a matrix product
constexpr int TILE_VECTORS = 4;  // column vectors of a register tile

using Floats = __m512;

inline Floats zero() { return _mm512_setzero_ps(); }
inline Floats broadcast(float value) { return _mm512_set1_ps(value); }
inline Floats add(Floats a, Floats b) { return _mm512_add_ps(a, b); }
inline Floats sub(Floats a, Floats b) { return _mm512_sub_ps(a, b); }
inline Floats mul(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
inline Floats div(Floats a, Floats b) { return _mm512_div_ps(a, b); }
// b if either is NaN
inline Floats max(Floats a, Floats b) { return _mm512_max_ps(a, b); }
inline Floats min(Floats a, Floats b) { return _mm512_min_ps(a, b); }
inline Floats fma(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
inline Floats round(Floats a) { return _mm512_roundscale_ps(a, 0); }
// a, but 0 where value < least
inline Floats zero_below(Floats a, Floats value, float least) {
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(value, broadcast(least), _CMP_NLT_UQ), a);
}
// The lanes [from, to) of a, `rest` in the others.
inline Floats within(Floats a, int from, int to, float rest) {
    return _mm512_mask_mov_ps(broadcast(rest), __mmask16(((1u << to) - 1) & ~((1u << from) - 1)), a);
}
// a * 2^n for integral n in [-126, 127]
inline Floats scale_by_power(Floats a, Floats n) {
    const __m512i exponent = _mm512_slli_epi32(_mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127)), 23);
    return _mm512_mul_ps(a, _mm512_castsi512_ps(exponent));
}

inline Floats load(const float* p) { return _mm512_loadu_ps(p); }
inline Floats load(const bfloat16* p) {
    const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}
inline Floats load(const float16* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
inline void store(float* p, Floats a) { _mm512_storeu_ps(p, a); }
inline void store(bfloat16* p, Floats a) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), (__m256i)_mm512_cvtneps_pbh(a));
}
inline void store(float16* p, Floats a) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT));
}

// Operands of a K-step: a vector of 16 columns, and one row's element or pair of elements.
struct Pairs {
    __m512i bits;
};
inline Floats columns(const float* p) { return load(p); }
inline Floats columns(const float16* p) { return load(p); }
inline Pairs columns(const bfloat16* p) { return {_mm512_loadu_si512(p)}; }
// int8 operands. For bfloat16, two vectors are widened at a time: place() is the byte index, within these two vectors, of
// element `part` of a column, such that unpacklo and unpackhi of the table lookups give the two operands.
template <class T>
constexpr int WIDENED = 1;
template <>
inline constexpr int WIDENED<bfloat16> = 2;
template <class T>
constexpr int place(int, int column, int) {
    return column;
}
template <>
constexpr int place<bfloat16>(int vector, int column, int part) {
    return column / 4 * 16 + vector * 8 + column % 4 * 2 + part;
}
inline void widen_int8(const int8_t* p, Floats* out) {
    *out = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
}
// Lookup tables: the low and high bytes of 0 to 127 as bfloat16.
struct Bfloat16Bytes {
    alignas(64) uint8_t low[128] = {}, high[128] = {};
    constexpr Bfloat16Bytes() {
        for (int number = 1; number < 128; ++number) {
            int exponent = 0;
            while (number >> (exponent + 1)) ++exponent;
            const int bits = (127 + exponent) << 7 | ((number << (7 - exponent)) & 0x7f);
            low[number] = uint8_t(bits);
            high[number] = uint8_t(bits >> 8);
        }
    }
};
inline constexpr Bfloat16Bytes BFLOAT16_BYTES;
inline void widen_int8(const int8_t* p, Pairs* out) {
    const auto half = [](const uint8_t* table, int which) { return _mm512_load_si512(table + which * 64); };
    const __m512i numbers = _mm512_loadu_si512(p), size = _mm512_abs_epi8(numbers);
    const __m512i low = _mm512_permutex2var_epi8(half(BFLOAT16_BYTES.low, 0), size, half(BFLOAT16_BYTES.low, 1));
    const __m512i high = _mm512_permutex2var_epi8(half(BFLOAT16_BYTES.high, 0), size, half(BFLOAT16_BYTES.high, 1));
    const __m512i with_sign = _mm512_ternarylogic_epi32(high, numbers, _mm512_set1_epi8(-128), 0xf8);  // a | b & c
    out[0] = {_mm512_unpacklo_epi8(low, with_sign)};
    out[1] = {_mm512_unpackhi_epi8(low, with_sign)};
}

inline Floats element(const float* p) { return broadcast(*p); }
inline Floats element(const float16* p) { return broadcast(_cvtsh_ss(p->bits)); }
inline Pairs element(const bfloat16* p) {
    int pair;
    std::memcpy(&pair, p, sizeof pair);
    return {_mm512_set1_epi32(pair)};
}
// Zeros in place of the odd elements, and of the even ones.
inline Pairs even(Pairs a) { return {_mm512_and_si512(a.bits, _mm512_set1_epi32(0xffff))}; }
inline Pairs odd(Pairs a) { return {_mm512_and_si512(a.bits, _mm512_set1_epi32(int(0xffff0000)))}; }
inline Floats mac(Floats sum, Floats a, Floats b) { return _mm512_fmadd_ps(a, b, sum); }
inline Floats mac(Floats sum, Pairs a, Pairs b) {
    return _mm512_dpbf16_ps(sum, (__m512bh)a.bits, (__m512bh)b.bits);
}

// Transposes a 16 x 16 matrix of 4-byte elements. Strides in elements of T; `out` is aligned to 64 bytes. The stores are
// non-temporal: call `drain` before another thread reads them.
template <class T>
inline void transpose(const T* in, int64_t in_stride, T* out, int64_t out_stride) {
    const __m512i low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    const __m512i high = _mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
    __m512i row[16], mixed[16];
    for (int i = 0; i < 16; ++i) row[i] = _mm512_loadu_si512(in + i * in_stride);
    for (int round = 0; round < 4; ++round) {
        for (int i = 0; i < 8; ++i) {
            mixed[2 * i] = _mm512_permutex2var_epi32(row[i], low, row[i + 8]);
            mixed[2 * i + 1] = _mm512_permutex2var_epi32(row[i], high, row[i + 8]);
        }
        for (int i = 0; i < 16; ++i) row[i] = mixed[i];
    }
    for (int i = 0; i < 16; ++i) _mm512_stream_si512(reinterpret_cast<__m512i*>(out + i * out_stride), row[i]);
}

inline void drain() { _mm_sfence(); }

inline void prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0); }
inline void prefetch_far(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T1); }  // into the second cache
inline void relax() { _mm_pause(); }

}  // namespace simd
