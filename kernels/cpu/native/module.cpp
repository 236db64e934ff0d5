// The Python module of the kernels. Tensors are passed as addresses; the callers in kernels/cpu have checked them.
#include <pybind11/pybind11.h>

#include <stdexcept>

#include "bitmask.h"
#include "has_amx.h"
#include "sample.h"
#include "stack.h"
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
             Address scales, Address out) {
    with_type(type, [=](auto t) {
        using T = decltype(t);
        const linear::Matrix matrix{n, k, int64_t(packed), int64_t(scales)};
        const auto into = [=](auto* result) { linear::multiply(at<const T>(x), x_stride, rows, matrix, result); };
        out_type == 'f' ? into(at<float>(out)) : into(at<T>(out));
    });
}

void quantise(char type, Address rows, int64_t first, int64_t count, int64_t k, Address packed, Address scales) {
    with_type(type, [=](auto t) {
        linear::quantise(at<const decltype(t)>(rows), first, count, k, at<int8_t>(packed), at<float>(scales));
    });
}

void rms_norm(char type, Address x, int64_t x_stride, Address residual, Address weight, float eps, int64_t rows,
              int64_t size, Address out, Address total) {
    with_type(type, [=](auto t) {
        using T = decltype(t);
        pointwise::rms_norm(at<const T>(x), x_stride, at<const T>(residual), at<const T>(weight), eps, rows, size,
                            at<T>(out), at<T>(total));
    });
}

void silu_mul(char type, Address gate_up, int64_t rows, int64_t size, Address out) {
    with_type(type, [=](auto t) {
        using T = decltype(t);
        pointwise::silu_mul(at<const T>(gate_up), rows, size, at<T>(out));
    });
}

void rope_and_write(char type, Address qkv, int64_t tokens, int64_t heads, Address query_norm, Address key_norm,
                    float eps, Address cos_sin, Address positions, Address slots, Address cache, int64_t kv_heads,
                    int64_t head_dim, int64_t block_size, Address query) {
    with_type(type, [=](auto t) {
        using T = decltype(t);
        pointwise::rope_and_write(at<const T>(qkv), tokens, heads, at<const T>(query_norm), at<const T>(key_norm), eps,
                                  at<const float>(cos_sin), at<const int64_t>(positions), at<const int64_t>(slots),
                                  Cache<T>{at<T>(cache), kv_heads, head_dim, block_size}, at<T>(query));
    });
}

void paged_attention(char type, Address query, Address cache, int64_t kv_heads, int64_t head_dim, int64_t block_size,
                     Address tables, int64_t table_stride, Address starts, Address lens,
                     int64_t requests, int64_t heads, float scale, Address out) {
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
            at<T>(out),
        });
    });
}

void run_stack(char type, Address layers, int64_t num_layers, const stack::Step& step, Address hidden, Address residual) {
    with_type(type, [&](auto t) {
        using T = decltype(t);
        stack::run(at<const stack::Layer>(layers), num_layers, step, at<T>(hidden), at<T>(residual));
    });
}

void draw(Address logits, Address raw, int64_t rows, int64_t vocab, Address draws, Address ids, Address healthy) {
    sample::draw(at<const float>(logits), at<const float>(raw), rows, vocab, at<const sample::Draw>(draws),
                 at<int64_t>(ids), at<bool>(healthy));
}

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
    m.def("rms_norm", rms_norm, released);
    m.def("silu_mul", silu_mul, released);
    m.def("rope_and_write", rope_and_write, released);
    m.def("paged_attention", paged_attention, released);
    m.def("draw", draw, released);
    m.def("apply_bitmask", apply_bitmask, released);
    m.def("stack",
          [](char type, Address layers, int64_t num_layers, int64_t tokens, int64_t heads, int64_t kv_heads,
             int64_t head_dim, int64_t block_size, double eps, double scale, Address cos_sin, Address positions,
             Address slots, Address tables, int64_t table_stride, Address starts, Address lens, int64_t requests,
             Address wanted, int64_t num_wanted, Address hidden, Address residual) {
              run_stack(type, layers, num_layers,
                        {tokens, heads, kv_heads, head_dim, block_size, eps, scale, cos_sin, positions, slots, tables,
                         table_stride, starts, lens, requests, wanted, num_wanted},
                        hidden, residual);
          },
          released);
}
