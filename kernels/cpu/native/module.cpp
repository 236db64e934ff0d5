// The Python module of the kernels. Tensors are passed as addresses; the callers in kernels/cpu have checked them.
#include <pybind11/pybind11.h>

#include <stdexcept>

#include "bitmask.h"
#include "has_amx.h"
#include "program.h"
#include "sample.h"
#include "x86_level.h"

namespace {

using Address = uintptr_t;

template <class T>
T* at(Address address) {
    return reinterpret_cast<T*>(address);
}

// Calls `work` with a value of the named element type: f float, b bfloat16, h float16.
template <class F>
void with_type(char name, F&& work) {
    switch (name) {
        case 'f': return work(float{});
        case 'b': return work(bfloat16{});
        case 'h': return work(float16{});
        default: throw std::invalid_argument("unknown element type");
    }
}

int64_t packed_size(char type, int64_t n, int64_t k) {
    int64_t size = 0;
    with_type(type, [&](auto t) { size = linear::panels(n) * linear::PANEL * k * int64_t(sizeof t); });
    return size;
}

void pack(char type, Address rows, int64_t first, int64_t count, int64_t n, int64_t k, Address packed) {
    with_type(type, [=](auto t) {
        using T = decltype(t);
        linear::pack(at<const T>(rows), first, count, n, k, at<T>(packed));
    });
}

void unpack_rows(char type, int64_t n, int64_t k, Address packed, Address scales, Address ids, int64_t count,
                 Address out) {
    with_type(type, [=](auto t) {
        const linear::Matrix matrix{n, k, int64_t(packed), int64_t(scales)};
        linear::rows_of(matrix, at<const int64_t>(ids), count, at<decltype(t)>(out));
    });
}

void product(char type, char out_type, Address x, int64_t x_stride, int64_t rows, int64_t n, int64_t k, Address packed,
             Address scales, Address bias, Address out) {
    with_type(type, [=](auto t) {
        using T = decltype(t);
        const linear::Matrix matrix{n, k, int64_t(packed), int64_t(scales)};
        const auto into = [=](auto* result) {
            linear::multiply(at<const T>(x), x_stride, rows, matrix, at<const float>(bias), result);
        };
        out_type == 'f' ? into(at<float>(out)) : into(at<T>(out));
    });
}

void quantise(char type, Address rows, int64_t first, int64_t count, int64_t k, Address packed, Address scales) {
    with_type(type, [=](auto t) {
        linear::quantise(at<const decltype(t)>(rows), first, count, k, at<int8_t>(packed), at<float>(scales));
    });
}

void normalise(char type, Address x, int64_t x_stride, Address weight, Address bias, int64_t size, int64_t groups,
               int64_t weight_stride, float eps, bool centred, int64_t rows, Address out, int64_t out_stride) {
    with_type(type, [=](auto t) {
        using T = decltype(t);
        const norm::Weights with{at<const float>(weight), at<const float>(bias), size, eps, centred};
        norm::each(at<const T>(x), x_stride, with, groups, weight_stride, rows, at<T>(out), out_stride);
    });
}

void add_norm(char type, Address x, int64_t x_stride, Address residual, float factor, Address weight, Address bias,
              int64_t size, float eps, bool centred, int64_t rows, Address out, Address total) {
    with_type(type, [=](auto t) {
        using T = decltype(t);
        const norm::Weights with{at<const float>(weight), at<const float>(bias), size, eps, centred};
        norm::add(at<const T>(x), x_stride, at<const T>(residual), factor, with, rows, at<T>(out), at<T>(total));
    });
}

void activate(char type, Address x, int64_t kind, bool gated, float alpha, float limit, int64_t rows, int64_t size,
              Address out) {
    with_type(type, [=](auto t) {
        using T = decltype(t);
        activation::activate(at<const T>(x), {activation::Kind(kind), gated, alpha, limit}, rows, size, at<T>(out));
    });
}

void route(Address logits, int64_t tokens, int64_t experts, int64_t top_k, bool sigmoid, bool renormalised,
           int64_t groups, int64_t kept_groups, float scale, Address correction, Address ids, Address weights) {
    mixture::route(at<float>(logits), tokens,
                   {experts, top_k, sigmoid, renormalised, groups, kept_groups, scale, at<const float>(correction)},
                   at<int32_t>(ids), at<float>(weights));
}

void mix(char type, Address x, int64_t tokens, int64_t top_k, Address ids, Address weights, int64_t experts,
         Address inner, Address down, Address inner_bias, Address down_bias, int64_t kind, bool gated, float alpha,
         float limit, bool adds, Address out) {
    with_type(type, [=](auto t) {
        using T = decltype(t);
        const mixture::Experts each{experts, at<const mixture::Matrix>(inner), at<const mixture::Matrix>(down),
                                    at<const float>(inner_bias), at<const float>(down_bias),
                                    {activation::Kind(kind), gated, alpha, limit}};
        mixture::mix(at<const T>(x), tokens, top_k, at<const int32_t>(ids), at<const float>(weights), each, adds,
                     at<T>(out));
    });
}

int64_t mixture_bytes(char type, int64_t pairs, int64_t k, int64_t inner, int64_t size) {
    int64_t found = 0;
    with_type(type, [&](auto t) { found = mixture::bytes<decltype(t)>(pairs, k, inner, size); });
    return found;
}

void rope_and_write(char type, Address qkv, int64_t tokens, int64_t heads, Address query_norm, Address key_norm,
                    float eps, Address query_table, Address key_table, int64_t rotary, Address positions, Address slots,
                    Address cache, int64_t kv_heads, int64_t head_dim, int64_t block_size, Address query) {
    with_type(type, [=](auto t) {
        using T = decltype(t);
        rope::turn_and_write(at<const T>(qkv), rope::Shape{tokens, heads, rotary, eps},
                             rope::Turn{at<const float>(query_norm), at<const float>(query_table)},
                             rope::Turn{at<const float>(key_norm), at<const float>(key_table)},
                             at<const int64_t>(positions), at<const int64_t>(slots),
                             Cache<T>{at<T>(cache), kv_heads, head_dim, block_size}, at<T>(query));
    });
}

void paged_attention(char type, Address query, Address cache, int64_t kv_heads, int64_t head_dim, int64_t block_size,
                     Address tables, int64_t table_stride, Address starts, Address lens,
                     int64_t requests, int64_t heads, float scale, int64_t window, float soft_cap, Address sinks,
                     Address out) {
    with_type(type, [=](auto t) {
        using T = decltype(t);
        attention::paged_attention(attention::Inputs<T>{
            at<const T>(query),
            {at<T>(cache), kv_heads, head_dim, block_size},
            at<const int32_t>(tables),
            table_stride,
            at<const int32_t>(starts),
            at<const int32_t>(lens),
            requests,
            heads,
            scale,
            window,
            soft_cap,
            at<const float>(sinks),
            at<T>(out),
        });
    });
}

void run_program(char type, Address operations, int64_t count, const program::Step& step, Address hidden,
                 int64_t hidden_size, Address out) {
    with_type(type, [&](auto t) {
        using T = decltype(t);
        program::run(at<const program::Operation>(operations), count, step, at<T>(hidden), hidden_size, at<T>(out));
    });
}

void draw(Address logits, Address raw, int64_t rows, int64_t vocab, Address draws, Address ids, Address healthy) {
    sample::draw(at<const float>(logits), at<const float>(raw), rows, vocab, at<const sample::Draw>(draws),
                 at<int64_t>(ids), at<bool>(healthy));
}

void cap_softly(Address x, int64_t rows, int64_t size, float cap) { soft_cap::apply(at<float>(x), rows, size, cap); }

void apply_bitmask(Address logits, int64_t vocab, Address masks, int64_t words, Address rows, int64_t count) {
    bitmask::apply(at<float>(logits), vocab, at<const int32_t>(masks), words, at<const int64_t>(rows), count);
}

// The fastest variant that this machine can run.
const char* best_variant() {
#if defined(__x86_64__) && defined(__GNUC__)
    if (has_x86_64_v4() && __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vbmi"))
        return has_amx() ? "_amx" : "_avx512bf16";
    if (has_x86_64_v3()) return "_avx2";
#endif
    return "_portable";
}

}  // namespace

PYBIND11_MODULE(TANDEM_MODULE, m) {
    const pybind11::call_guard<pybind11::gil_scoped_release> released;
    m.attr("NAME") = amx::NAME;
    m.def("best_variant", best_variant);
    m.def("set_num_threads", [](int count) { Pool::instance().set_num_threads(count); }, released);
    m.def("num_threads", [] { return Pool::instance().num_threads(); });
    m.def("nanoseconds", [] { return Pool::instance().nanoseconds(); });
    m.def("packed_size", packed_size);
    m.def("pack", pack, released);
    m.def("unpack_rows", unpack_rows, released);
    m.def("product", product, released);
    m.def("quantise", quantise, released);
    m.def("norm", normalise, released);
    m.def("add_norm", add_norm, released);
    m.def("activate", activate, released);
    m.def("route", route, released);
    m.def("mix", mix, released);
    m.def("mixture_bytes", mixture_bytes);
    m.def("rope_and_write", rope_and_write, released);
    m.def("paged_attention", paged_attention, released);
    m.def("draw", draw, released);
    m.def("soft_cap", cap_softly, released);
    m.def("apply_bitmask", apply_bitmask, released);
    m.def("run",
          [](char type, Address operations, int64_t count, int64_t tokens, int64_t block_size, Address positions,
             Address groups, int64_t table_stride, Address starts, Address lens, int64_t requests,
             Address wanted, int64_t num_wanted, Address hidden, int64_t hidden_size, Address out) {
              run_program(type, operations, count,
                          {tokens, block_size, positions, at<const program::Group>(groups), table_stride, starts,
                           lens, requests, wanted, num_wanted},
                          hidden, hidden_size, out);
          },
          released);
}
