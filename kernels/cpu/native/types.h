// Element types of tensors, for storage; arithmetic is always in float.
#pragma once
#include <cstdint>
#include <cstring>

struct bfloat16 {
    uint16_t bits;
};

struct float16 {
    uint16_t bits;
};

inline float from_bits(uint32_t bits) {
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

inline uint32_t to_bits(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    return bits;
}

inline float widen(float value) { return value; }
inline float widen(bfloat16 value) { return from_bits(uint32_t(value.bits) << 16); }

// IEEE 754 binary16, subnormals included.
inline float widen(float16 value) {
    const uint32_t sign = uint32_t(value.bits & 0x8000) << 16, magnitude = value.bits & 0x7fff;
    if (magnitude >= 0x7c00) return from_bits(sign | 0x7f800000 | (magnitude & 0x3ff) << 13);
    // The exponent is rebiased by a multiplication, which also normalises subnormals.
    return from_bits(sign | to_bits(from_bits(magnitude << 13) * from_bits(0x77800000)));
}

inline void narrow(float value, float* out) { *out = value; }

// Round to nearest, ties to even.
inline void narrow(float value, bfloat16* out) {
    const uint32_t bits = to_bits(value);
    const bool nan = (bits & 0x7fffffff) > 0x7f800000;
    out->bits = uint16_t(nan ? (bits >> 16) | 0x40 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

inline void narrow(float value, float16* out) {
    const uint32_t bits = to_bits(value), sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
    uint32_t result;
    if (magnitude > 0x7f800000) {
        result = 0x7e00;
    } else if (magnitude >= 0x477ff000) {
        result = 0x7c00;  // rounds to infinity
    } else if (magnitude < 0x38800000) {
        // Adding 0.5 leaves the rounded subnormal in the low bits of the mantissa.
        result = to_bits(from_bits(magnitude) + 0.5f) - 0x3f000000;
    } else {
        result = (magnitude - 0x38000000 + 0xfff + (magnitude >> 13 & 1)) >> 13;
    }
    out->bits = uint16_t(sign | result);
}
