// Mixtures of experts: which experts a token has, and the sum of their MLPs. Twins: kernels/reference.py.
//
// Batch invariance: a row of an expert's product depends on no other row; a token's experts are summed in the order in
// which they were chosen; equal scores go to the lower expert.
#pragma once
#include <limits>

#include "activation.h"
#include "buffer.h"
#include "operand.h"

namespace mixture {

using linear::Matrix;

struct Router {
    int64_t experts, top_k;
    bool sigmoid, renormalised;
    int64_t groups, kept_groups;  // experts are chosen from the best groups
    float scale;                  // of the weights
    const float* correction;      // [experts]: added to the scores for the choice alone; may be null
};

constexpr int64_t BLOCKS_OF_A_THREAD = 4;  // with more, threads end about together without sharing a block
constexpr float NONE = -std::numeric_limits<float>::infinity();

// Softmax or sigmoid of a token's logits, in place.
inline void score(float* x, const Router& router) {
    const int64_t size = router.experts;
    if (router.sigmoid) {
        const simd::Floats one = simd::broadcast(1.0f);
        return rows::each_vector(size, [&](int64_t at, int count) {
            const simd::Floats e = simd::exp(simd::sub(simd::zero(), simd::load_first(x + at, count)));
            simd::store_first(x + at, simd::div(one, simd::add(one, e)), count);
        });
    }
    const float top = *std::max_element(x, x + size);
    rows::each_vector(size, [&](int64_t at, int count) {
        simd::store_first(x + at, simd::exp(simd::sub(simd::load_first(x + at, count), simd::broadcast(top))), count);
    });
    float total = 0.0f;
    for (int64_t i = 0; i < size; ++i) total += x[i];
    for (int64_t i = 0; i < size; ++i) x[i] /= total;
}

// Index of the largest element that is not NONE, the first of equals; 0 if there is none.
inline int64_t largest(const float* x, int64_t size) {
    int64_t best = 0;
    for (int64_t i = 1; i < size; ++i)
        if (x[i] > x[best]) best = i;
    return best;
}

// Takes the experts of all groups but the best from the choice. A group is as good as the sum of its two best experts.
inline void keep_groups(float* choice, const Router& router) {
    const int64_t size = router.experts / router.groups;
    std::vector<float> values(router.groups);
    for (int64_t group = 0; group < router.groups; ++group) {
        float first = NONE, second = NONE;
        for (int64_t i = group * size; i < (group + 1) * size; ++i) {
            second = std::max(second, std::min(first, choice[i]));
            first = std::max(first, choice[i]);
        }
        values[group] = first + second;
    }
    std::vector<bool> kept(router.groups);
    for (int64_t i = 0; i < router.kept_groups; ++i) {
        const int64_t best = largest(values.data(), router.groups);
        kept[best] = true;
        values[best] = NONE;
    }
    for (int64_t i = 0; i < router.experts; ++i)
        if (!kept[i / size]) choice[i] = NONE;
}

// From logits [tokens, experts], which are overwritten: ids [tokens, top_k], the best expert first, and their weights.
inline void route(float* logits, int64_t tokens, const Router& router, int32_t* ids, float* weights) {
    rows::each_row(tokens, [=](int64_t token) {
        thread_local std::vector<float> choice;
        float* const scores = logits + token * router.experts;
        score(scores, router);
        choice.assign(scores, scores + router.experts);
        if (router.correction != nullptr)
            for (int64_t i = 0; i < router.experts; ++i) choice[i] += router.correction[i];
        if (router.kept_groups < router.groups) keep_groups(choice.data(), router);
        int32_t* const own = ids + token * router.top_k;
        float* const shares = weights + token * router.top_k;
        float total = 0.0f;
        for (int64_t slot = 0; slot < router.top_k; ++slot) {
            const int64_t best = largest(choice.data(), router.experts);
            choice[best] = NONE;
            own[slot] = int32_t(best);
            total += shares[slot] = scores[best];
        }
        for (int64_t slot = 0; slot < router.top_k; ++slot)
            shares[slot] = (router.renormalised ? shares[slot] / total : shares[slot]) * router.scale;
    });
}

// The experts of a layer: [experts] matrices each; biases [experts, n], may be null.
struct Experts {
    int64_t count;
    const Matrix *inner, *down;
    const float *inner_bias, *down_bias;
    activation::Form form;
};

// At most BLOCK_ROWS rows of an expert.
struct Block {
    int64_t expert, first, rows;
};

// What one call needs, kept for the next one. One caller at a time. Rows are (token, slot) pairs, sorted by expert.
template <class T>
struct Workspace {
    std::vector<int64_t> starts;  // [experts + 1]: an expert's first row
    std::vector<int64_t> places;  // [tokens * top_k]: the row of each pair
    std::vector<int64_t> pairs;   // [tokens * top_k]: the pair of each row
    std::vector<Block> blocks;    // in the order of rows
    Buffer<T> rows, between;

    static Workspace& instance() {
        static Workspace kept;
        return kept;
    }
};

// Returns room for `size` elements. Old contents go first, so that a buffer which grows is never there twice.
template <class T>
T* room(Buffer<T>& buffer, int64_t size) {
    if (int64_t(buffer.size()) < size) {
        buffer = Buffer<T>();
        buffer.resize(size);
    }
    return buffer.data();
}

// A panel of out [rows, n] = x [rows, k] @ the block's expert. `x` and `after`: as in linear::multiply_panel.
template <class T, class Rows>
void multiply_panel(const Block& block, const Rows& x, const Matrix* matrices, const float* biases, int64_t panel, T* out,
                    const void* after = nullptr) {
    const Matrix& matrix = matrices[block.expert];
    const float* const bias = biases == nullptr ? biases : biases + block.expert * matrix.n;
    linear::multiply_panel<T>(x, block.rows, matrix, panel,
                           matrix.place(panel, bias, out + panel * linear::PANEL, matrix.n), after);
}

// The same for all panels. `after`: what is read after the last one.
template <class T, class Rows>
void multiply_panels(const Block& block, const Rows& x, const Matrix* matrices, const float* biases, T* out,
                     const void* after) {
    const int64_t panels = linear::panels(matrices[0].n);
    for (int64_t panel = 0; panel < panels; ++panel)
        multiply_panel(block, x, matrices, biases, panel, out, panel + 1 < panels ? nullptr : after);
}

// The rows of a block: each is one of x [tokens, k].
template <class T>
void gather(const Workspace<T>& work, const Block& block, const T* x, int64_t top_k, int64_t k, T* out) {
    for (int64_t row = 0; row < block.rows; ++row)
        std::memcpy(static_cast<void*>(out + row * k), x + work.pairs[block.first + row] / top_k * k, k * sizeof(T));
}

// Calls call(rows) with the rows of a block, which are copied to `out`: as tiles, if AMX multiplies them.
template <class T, class F>
void with_gathered(const Workspace<T>& work, const Block& block, const T* x, int64_t top_k, int64_t k, T* out, F&& call) {
    if constexpr (amx::MULTIPLIES<T>)
        if (k % amx::STEP == 0)
            return call(amx::tile_rows(
                block.rows, k, [&](int64_t row) { return x + work.pairs[block.first + row] / top_k * k; }, out));
    gather(work, block, x, top_k, k, out);
    call(linear::RowMajor<T>{out, k});
}

// out [rows, n] = x [rows, k] @ each row's expert: one list of tasks, in which a block's panels follow each other.
template <class T>
void multiply(const Workspace<T>& work, const T* x, const Matrix* matrices, const float* biases, T* out) {
    const int64_t n = matrices[0].n, k = matrices[0].k, panels = linear::panels(n);
    Pool::instance().run(int64_t(work.blocks.size()) * panels, [&](int64_t task, int) {
        const Block& block = work.blocks[task / panels];
        const linear::RowMajor<T> rows{x + block.first * k, k};
        multiply_panel(block, rows, matrices, biases, task % panels, out + block.first * n);
    });
}

// out [rows, k] = each row's expert: all tasks share each of its steps, so few blocks keep all threads busy.
template <class T>
void step_by_step(Workspace<T>& work, const T* x, int64_t top_k, const Experts& experts, T* out) {
    const int64_t k = experts.inner[0].k, inner = experts.inner[0].n, size = experts.down[0].k;
    const int64_t count = int64_t(work.pairs.size());
    Pool::instance().run(int64_t(work.blocks.size()), [&](int64_t task, int) {
        gather(work, work.blocks[task], x, top_k, k, out + work.blocks[task].first * k);
    });
    T* const wide = room(work.between, count * (inner + size));
    T* const activated = wide + count * inner;
    multiply(work, out, experts.inner, experts.inner_bias, wide);
    activation::activate(wide, experts.form, count, size, activated);
    multiply(work, activated, experts.down, experts.down_bias, out);
}

// The same, by a task for each block: its rows stay in the cache of a core from the first step to the last.
template <class T>
void block_by_block(Workspace<T>& work, const T* x, int64_t top_k, const Experts& experts, T* out) {
    const int64_t k = experts.inner[0].k, inner = experts.inner[0].n, size = experts.down[0].k;
    const int64_t own = linear::BLOCK_ROWS * (k + inner + size);  // of each thread
    T* const all = room(work.between, Pool::instance().num_threads() * own);
    Pool::instance().run(int64_t(work.blocks.size()), [&](int64_t task, int thread) {
        const Block& block = work.blocks[task];
        T* const some = all + thread * own;
        T *const wide = some + linear::BLOCK_ROWS * k, *const activated = wide + block.rows * inner;
        with_gathered(work, block, x, top_k, k, some, [&](const auto& gathered) {
            multiply_panels(block, gathered, experts.inner, experts.inner_bias, wide,
                            experts.down[block.expert].template weights<T>());
        });
        for (int64_t row = 0; row < block.rows; ++row)
            activation::activate_row(wide + row * inner, experts.form, size, activated + row * size);
        const Block& following = work.blocks[std::min(task + 1, int64_t(work.blocks.size()) - 1)];
        multiply_panels(block, linear::RowMajor<T>{activated, size}, experts.down, experts.down_bias, out + block.first * k,
                        experts.inner[following.expert].template weights<T>());
    });
}

// Returns the bytes of the workspace for `pairs` rows of k elements, at most: mix() follows the same formula.
template <class T>
int64_t bytes(int64_t pairs, int64_t k, int64_t inner, int64_t size) {
    const int64_t threads = Pool::instance().num_threads();
    const int64_t shared = std::min(pairs, BLOCKS_OF_A_THREAD * threads * linear::BLOCK_ROWS) * (inner + size);
    const int64_t own = threads * linear::BLOCK_ROWS * (k + inner + size);
    return (pairs * k + std::max(shared, own)) * int64_t(sizeof(T)) + pairs * 2 * int64_t(sizeof(int64_t));
}

// Sorts the pairs by expert, and cuts them into blocks; the pairs of an expert stay in the order of tokens.
template <class T>
void sort(Workspace<T>& work, const int32_t* ids, int64_t pairs, int64_t experts) {
    work.starts.assign(experts + 1, 0);
    for (int64_t pair = 0; pair < pairs; ++pair) ++work.starts[ids[pair] + 1];
    for (int64_t expert = 0; expert < experts; ++expert) work.starts[expert + 1] += work.starts[expert];
    std::vector<int64_t> next(work.starts.begin(), work.starts.end() - 1);
    work.places.resize(pairs);
    work.pairs.resize(pairs);
    for (int64_t pair = 0; pair < pairs; ++pair) work.pairs[work.places[pair] = next[ids[pair]]++] = pair;
    work.blocks.clear();
    for (int64_t expert = 0; expert < experts; ++expert)
        for (int64_t first = work.starts[expert]; first < work.starts[expert + 1]; first += linear::BLOCK_ROWS)
            work.blocks.push_back({expert, first, std::min(work.starts[expert + 1] - first, linear::BLOCK_ROWS)});
}

// out [tokens, k] = the weighted sum of each token's experts; `adds`: of that and out. x [tokens, k]; ids and weights
// [tokens, top_k]. Rounded once.
template <class T>
void mix(const T* x, int64_t tokens, int64_t top_k, const int32_t* ids, const float* weights, const Experts& experts,
         bool adds, T* out) {
    Workspace<T>& work = Workspace<T>::instance();
    const int64_t pairs = tokens * top_k, k = experts.inner[0].k;
    sort(work, ids, pairs, experts.count);
    T* const some = room(work.rows, pairs * k);
    if (int64_t(work.blocks.size()) <= BLOCKS_OF_A_THREAD * Pool::instance().num_threads())
        step_by_step(work, x, top_k, experts, some);
    else
        block_by_block(work, x, top_k, experts, some);
    rows::each_row(tokens, [&](int64_t token) {
        rows::each_vector(k, [&](int64_t at, int count) {
            T* const place = out + token * k + at;
            simd::Floats sum = adds ? simd::load_first(place, count) : simd::zero();
            for (int64_t pair = token * top_k; pair < (token + 1) * top_k; ++pair)
                sum = simd::fma(simd::broadcast(weights[pair]), simd::load_first(some + work.places[pair] * k + at, count),
                                sum);
            simd::store_first(place, sum, count);
        });
    });
}

}  // namespace mixture
