// Runs all operations of a decoder in one call, without Python between kernels. Twin: kernels/stack.py.
#pragma once
#include "attention.h"
#include "gated.h"
#include "mixture.h"
#include "rope.h"

namespace program {

using Address = uintptr_t;
using linear::Matrix;

// In the order of _KINDS in kernels/cpu/stack.py.
enum class Kind : int64_t { MULTIPLY, NORM, ADD, ATTEND, ACTIVATE, SELECT, ROUTE, MIX };

// Activations of a step; the values of Place in kernels/program.py.
enum Place : int64_t { RESIDUAL, HIDDEN, NORMED, QKV, ATTENTION, INTERMEDIATE, ACTIVATED, NUM_PLACES };

// The memory layout of _OPERATION in kernels/cpu/stack.py, which says what each kind uses. Addresses of float32 tensors,
// but for those of matrix and cache; 0: none.
struct Operation {
    Kind kind;
    int64_t source, target;
    Matrix matrix;
    Address weight, bias;
    int64_t size, first, groups, weight_stride, centred, adds;
    Address key_weight, query_table, key_table, sinks, cache;
    int64_t heads, kv_heads, head_dim, rotary, window, kv_group;
    int64_t activation, gated;
    int64_t places;  // one bit for each
    int64_t experts, top_k, sigmoid, renormalised, route_groups, kept_groups;
    Address correction, inner, down, inner_bias, down_bias;  // inner, down: of an expert each, [experts] Matrix
    double eps, factor, soft_cap, alpha, limit;
};

// Where a KV group's layers write and read: slot_mapping and block tables.
struct Group {
    Address slots, tables;
};

struct Step {
    int64_t tokens, block_size;
    Address positions;
    const Group* groups;
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

// Activations, sized for the largest step so far and kept between steps. One caller at a time.
template <class T>
struct Buffers {
    Buffer<T> places[NUM_PLACES], query;
    Buffer<float> logits, weights;  // of the router
    Buffer<int32_t> experts;
};

template <class T>
class Run {
public:
    // residual [tokens, hidden size]: holds the embeddings; is overwritten.
    Run(const Step& step, T* residual, int64_t hidden_size) : step_(step), rows_(step.tokens) {
        data_[RESIDUAL] = residual;
        width_[RESIDUAL] = hidden_size;
    }

    // Returns how many operations it has run: two for a product and the gated activation of its halves, if it joins them.
    int64_t operator()(const Operation* op, int64_t left) {
        if (left > 1 && op[0].kind == Kind::MULTIPLY && op[0].target == INTERMEDIATE && op[1].kind == Kind::ACTIVATE &&
            op[1].gated && gated::fits(rows_, op[0].matrix)) {
            multiply_gated(op[0], op[1]);
            return 2;
        }
        run(*op);
        return 1;
    }

    // Copies the result of the last norm, [rows, hidden size].
    void copy_to(T* out) const { std::memcpy(static_cast<void*>(out), data_[NORMED], rows_ * width_[NORMED] * sizeof(T)); }

private:
    void run(const Operation& op) {
        switch (op.kind) {
            case Kind::MULTIPLY: return multiply(op);
            case Kind::NORM: return normalise(op);
            case Kind::ADD:
                return norm::only_add(data_[HIDDEN], float(op.factor), rows_, width_[RESIDUAL], data_[RESIDUAL]);
            case Kind::ATTEND: return attend(op);
            case Kind::ACTIVATE: return activate(op);
            case Kind::SELECT: return select(op);
            case Kind::ROUTE: return route(op);
            case Kind::MIX: return mix(op);
        }
    }

    // Returns room for a row of `width` elements for each token.
    T* room(Buffer<T>& buffer, int64_t width) const {
        return mixture::room(buffer, step_.tokens * width);
    }

    T* write(int64_t place, int64_t width) {
        width_[place] = width;
        return data_[place] = room(buffers().places[place], width);
    }

    static Buffers<T>& buffers() {
        static Buffers<T> kept;
        return kept;
    }

    void multiply(const Operation& op) {
        const T* const source = data_[op.source];
        linear::multiply(source, width_[op.source], rows_, op.matrix, at<const float>(op.bias),
                         write(op.target, op.matrix.n));
    }

    void multiply_gated(const Operation& op, const Operation& activation) {
        gated::multiply(data_[op.source], width_[op.source], rows_, op.matrix, at<const float>(op.bias), form(activation),
                        write(ACTIVATED, op.matrix.n / 2));
    }

    void normalise(const Operation& op) {
        const norm::Weights with{at<const float>(op.weight), at<const float>(op.bias), op.size, float(op.eps),
                                 op.centred != 0};
        if (op.adds) {
            T* const out = write(op.target, op.size);
            norm::add(data_[HIDDEN], op.size, data_[RESIDUAL], float(op.factor), with, rows_, out, data_[RESIDUAL]);
            return;
        }
        const T* const source = data_[op.source];
        const int64_t width = width_[op.source];
        T* const out = op.source == op.target ? data_[op.target] : write(op.target, width);
        norm::each(source + op.first, width, with, op.groups, op.weight_stride, rows_, out + op.first, width);
    }

    void attend(const Operation& op) {
        const Cache<T> cache{at<T>(op.cache), op.kv_heads, op.head_dim, step_.block_size};
        const Group& group = step_.groups[op.kv_group];
        T* const query = room(buffers().query, op.heads * op.head_dim);
        rope::turn_and_write(data_[QKV], rope::Shape{rows_, op.heads, op.rotary, float(op.eps)},
                             rope::Turn{at<const float>(op.weight), at<const float>(op.query_table)},
                             rope::Turn{at<const float>(op.key_weight), at<const float>(op.key_table)},
                             at<const int64_t>(step_.positions), at<const int64_t>(group.slots), cache, query);
        attention::paged_attention(attention::Inputs<T>{
            query, cache, at<const int32_t>(group.tables), step_.table_stride, at<const int32_t>(step_.starts),
            at<const int32_t>(step_.lens), step_.requests, op.heads, float(op.factor), op.window,
            float(op.soft_cap), at<const float>(op.sinks), write(ATTENTION, op.heads * op.head_dim)});
    }

    void activate(const Operation& op) {
        const int64_t size = width_[INTERMEDIATE] / (op.gated ? 2 : 1);
        activation::activate(data_[INTERMEDIATE], form(op), rows_, size, write(ACTIVATED, size));
    }

    static activation::Form form(const Operation& op) {
        return {activation::Kind(op.activation), op.gated != 0, float(op.alpha), float(op.limit)};
    }

    void route(const Operation& op) {
        Buffers<T>& kept = buffers();
        float* const logits = mixture::room(kept.logits, rows_ * op.experts);
        linear::multiply(data_[op.source], width_[op.source], rows_, op.matrix, at<const float>(op.bias), logits);
        top_k_ = op.top_k;
        mixture::route(logits, rows_,
                       mixture::Router{op.experts, op.top_k, op.sigmoid != 0, op.renormalised != 0, op.route_groups,
                                       op.kept_groups, float(op.factor), at<const float>(op.correction)},
                       mixture::room(kept.experts, rows_ * op.top_k), mixture::room(kept.weights, rows_ * op.top_k));
    }

    void mix(const Operation& op) {
        Buffers<T>& kept = buffers();
        const mixture::Experts experts{op.experts, at<const Matrix>(op.inner), at<const Matrix>(op.down),
                                       at<const float>(op.inner_bias), at<const float>(op.down_bias), form(op)};
        const T* const source = data_[op.source];
        T* const out = op.adds ? data_[HIDDEN] : write(HIDDEN, width_[op.source]);
        mixture::mix(source, rows_, top_k_, kept.experts.data(), kept.weights.data(), experts, op.adds != 0, out);
    }

    // Moves the wanted rows (ascending) of some places to their beginning.
    void select(const Operation& op) {
        const int64_t* const wanted = at<const int64_t>(step_.wanted);
        for (int64_t place = 0; place < NUM_PLACES; ++place) {
            if (!(op.places >> place & 1)) continue;
            const int64_t size = width_[place];
            for (int64_t row = 0; row < step_.num_wanted; ++row)
                std::memmove(static_cast<void*>(data_[place] + row * size), data_[place] + wanted[row] * size,
                             size * sizeof(T));
        }
        rows_ = step_.num_wanted;
    }

    const Step& step_;
    int64_t rows_;
    T* data_[NUM_PLACES] = {};
    int64_t width_[NUM_PLACES] = {};
    int64_t top_k_ = 0;  // of the last ROUTE
};

// Runs the operations. hidden [tokens, hidden size]: the embeddings, overwritten. out: the last norm's result.
template <class T>
void run(const Operation* operations, int64_t count, const Step& step, T* hidden, int64_t hidden_size, T* out) {
    Run<T> run(step, hidden, hidden_size);
    for (int64_t index = 0; index < count;) index += run(operations + index, count - index);
    run.copy_to(out);
}

}  // namespace program
