// Runs all layers of a decoder in one call, without Python between kernels. Twin: kernels/stack.py.
#pragma once
#include "attention.h"
#include "operand.h"
#include "pointwise.h"

namespace stack {

using Address = uintptr_t;
using linear::Matrix;

// The memory layout of _LAYER in kernels/cpu/stack.py.
struct Layer {
    Address input_norm;
    Matrix qkv;
    Address query_norm, key_norm;  // 0: none
    Matrix out;
    Address post_norm;
    Matrix gate_up, down;
    Address cache;
};

struct Step {
    int64_t tokens, heads, kv_heads, head_dim, block_size;
    double eps, scale;
    Address cos_sin, positions, slots, tables;
    int64_t table_stride;
    Address starts, lens;
    int64_t requests;
    Address wanted;  // [num_wanted] int64: logits_indices, the tokens to return
    int64_t num_wanted;
};

template <class T>
T* at(Address address) {
    return reinterpret_cast<T*>(address);
}

// Activations between two kernels, sized for the largest step so far and kept between steps. One caller at a time.
template <class T>
struct Buffers {
    std::vector<T> normed, qkv, query, mixed, gate_up, activated;
};

// Moves rows `wanted` (ascending) of x [.., size] to its beginning.
template <class T>
void gather(T* x, int64_t size, const int64_t* wanted, int64_t count) {
    for (int64_t row = 0; row < count; ++row)
        std::memmove(static_cast<void*>(x + row * size), x + wanted[row] * size, size * sizeof(T));
}

// hidden, residual [tokens, hidden size]. In: both hold the embeddings. Out: the first num_wanted rows hold the last
// layer's output and its residual, which are still to be added.
template <class T>
void run(const Layer* layers, int64_t num_layers, const Step& step, T* hidden, T* residual) {
    static Buffers<T> buffers;
    const Layer& first = layers[0];
    const int64_t size = first.qkv.k, width = step.heads * step.head_dim;
    const auto room = [&](std::vector<T>& buffer, int64_t columns) {
        if (int64_t(buffer.size()) < step.tokens * columns) buffer.resize(step.tokens * columns);
        return buffer.data();
    };
    T *const normed = room(buffers.normed, size), *const qkv = room(buffers.qkv, first.qkv.n);
    T *const query = room(buffers.query, width), *const mixed = room(buffers.mixed, width);
    T *const gate_up = room(buffers.gate_up, first.gate_up.n), *const activated = room(buffers.activated, first.down.k);
    const auto norm = [&](const T* x, const T* rest, Address weight, int64_t rows, T* total) {
        pointwise::rms_norm(x, size, rest, at<const T>(weight), float(step.eps), rows, size, normed, total);
    };
    for (int64_t index = 0; index < num_layers; ++index) {
        const Layer& layer = layers[index];
        const Cache<T> cache{at<T>(layer.cache), step.kv_heads, step.head_dim, step.block_size};
        int64_t rows = step.tokens;
        norm(hidden, index == 0 ? nullptr : residual, layer.input_norm, rows, residual);
        linear::multiply(normed, size, rows, layer.qkv, qkv);
        pointwise::rope_and_write(qkv, rows, step.heads, at<const T>(layer.query_norm), at<const T>(layer.key_norm),
                                  float(step.eps), at<const float>(step.cos_sin), at<const int64_t>(step.positions),
                                  at<const int64_t>(step.slots), cache, query);
        attention::paged_attention(attention::Inputs<T>{
            query, cache, at<const int32_t>(step.tables), step.table_stride, at<const int32_t>(step.starts),
            at<const int32_t>(step.lens), step.requests, step.heads, float(step.scale), mixed});
        if (index + 1 == num_layers) {  // after the last attention, only the returned tokens are computed
            rows = step.num_wanted;
            gather(mixed, width, at<const int64_t>(step.wanted), rows);
            gather(residual, size, at<const int64_t>(step.wanted), rows);
        }
        linear::multiply(mixed, width, rows, layer.out, hidden);
        norm(hidden, residual, layer.post_norm, rows, residual);
        linear::multiply(normed, size, rows, layer.gate_up, gate_up);
        pointwise::silu_mul(gate_up, rows, layer.gate_up.n / 2, activated);
        linear::multiply(activated, layer.down.k, rows, layer.down, hidden);
    }
}

}  // namespace stack
