// Activations of the MLP, with and without a gate. Elementwise, in float.
#pragma once
#include "rows.h"

namespace activation {

// In the order of ACTIVATIONS in kernels/program.py.
enum class Kind : int64_t { SILU, GELU_TANH, GELU, RELU2, CLAMPED_SILU };

// `alpha` and `limit`: of CLAMPED_SILU.
struct Form {
    Kind kind;
    bool gated;
    float alpha, limit;
};

using simd::broadcast;
using simd::Floats;
using simd::mul;

inline Floats times_sigmoid(const Floats& x, const Floats& z) {
    const Floats one = broadcast(1.0f);
    return mul(x, simd::div(one, simd::add(one, simd::exp(simd::sub(simd::zero(), z)))));
}

// The second half of what is gated, as it is.
struct AsIs {
    Floats second(const Floats& x) const { return x; }
};

struct Silu : AsIs {
    Floats operator()(const Floats& x) const { return times_sigmoid(x, x); }
};

// 0.5 (1 + tanh z) is the sigmoid of 2 z.
struct GeluTanh : AsIs {
    Floats operator()(const Floats& x) const {
        const Floats cubic = simd::fma(mul(mul(x, x), broadcast(0.044715f)), x, x);
        return times_sigmoid(x, mul(cubic, broadcast(1.5957691216057308f)));
    }
};

// x Phi(x), with the error function of Abramowitz and Stegun, 7.1.26 (absolute error 1.5e-7).
struct Gelu : AsIs {
    Floats operator()(const Floats& x) const {
        const Floats size = simd::max(x, simd::sub(simd::zero(), x)), one = broadcast(1.0f);
        const Floats z = mul(size, broadcast(0.70710678118654752f));
        const Floats t = simd::div(one, simd::fma(z, broadcast(0.3275911f), one));
        Floats tail = broadcast(1.061405429f);
        for (float coefficient : {-1.453152027f, 1.421413741f, -0.284496736f, 0.254829592f})
            tail = simd::fma(tail, t, broadcast(coefficient));
        tail = mul(mul(tail, t), simd::exp(simd::sub(simd::zero(), mul(z, z))));
        return simd::sub(simd::max(simd::zero(), x), mul(mul(size, broadcast(0.5f)), tail));
    }
};

struct Relu2 : AsIs {
    Floats operator()(const Floats& x) const {
        const Floats positive = simd::max(simd::zero(), x);
        return mul(positive, positive);
    }
};

// x sigmoid(alpha x) of x up to a limit; the second half is limited, too, and one is added (gpt-oss).
struct ClampedSilu {
    float alpha, limit;

    Floats operator()(const Floats& x) const {
        const Floats gate = simd::min(broadcast(limit), x);
        return times_sigmoid(gate, mul(gate, broadcast(alpha)));
    }
    Floats second(const Floats& x) const {
        return simd::add(simd::min(broadcast(limit), simd::max(broadcast(-limit), x)), broadcast(1.0f));
    }
};

// out [size] = f(x), x [size]; gated: f(first) * f.second(second) of the halves of x [2 * size].
template <class T, class F>
void apply(const T* x, bool gated, int64_t size, T* out, F f) {
    rows::each_vector(size, [=](int64_t at, int count) {
        const Floats value = f(simd::load_first(x + at, count));
        const Floats result = gated ? mul(value, f.second(simd::load_first(x + size + at, count))) : value;
        simd::store_first(out + at, result, count);
    });
}

template <class T>
void activate_row(const T* x, const Form& form, int64_t size, T* out) {
    switch (form.kind) {
        case Kind::SILU: return apply(x, form.gated, size, out, Silu{});
        case Kind::GELU_TANH: return apply(x, form.gated, size, out, GeluTanh{});
        case Kind::GELU: return apply(x, form.gated, size, out, Gelu{});
        case Kind::RELU2: return apply(x, form.gated, size, out, Relu2{});
        case Kind::CLAMPED_SILU: return apply(x, form.gated, size, out, ClampedSilu{form.alpha, form.limit});
    }
}

// out [rows, size] from x [rows, size], or [rows, 2 * size] if it is gated.
template <class T>
void activate(const T* x, const Form& form, int64_t rows, int64_t size, T* out) {
    const int64_t width = (form.gated ? 2 : 1) * size;
    rows::each_row(rows, [=](int64_t row) { activate_row(x + row * width, form, size, out + row * size); });
}

}  // namespace activation
