// Causal attention over the paged KV cache: divided into tasks, which attention_run.h computes. Twin: kernels/reference.py.
#pragma once
#include "attention_run.h"
#include "pool.h"

namespace attention {

constexpr int64_t TASK_ROWS = 32;
constexpr int64_t TASKS_PER_THREAD = 4;

// Decode: one task takes several KV heads if there are enough tasks for all threads, as a block's heads are contiguous.
template <class T>
std::vector<Task> tasks_of(const Inputs<T>& in, int num_threads) {
    const int64_t kv_heads = in.cache.kv_heads, group = in.heads / kv_heads;
    const int64_t queries = std::max<int64_t>(1, TASK_ROWS / group);
    std::vector<Task> tasks;
    for (int64_t request = 0; request < in.requests; ++request) {
        const int64_t count = in.starts[request + 1] - in.starts[request];
        const int64_t wanted = count > 1 ? kv_heads : (TASKS_PER_THREAD * num_threads + in.requests - 1) / in.requests;
        const int64_t heads = std::max<int64_t>(1, kv_heads / wanted);
        for (int64_t head = 0; head < kv_heads; head += heads)
            for (int64_t first = 0; first < count; first += queries)
                tasks.push_back({request, head, std::min(heads, kv_heads - head), first, std::min(queries, count - first)});
    }
    return tasks;
}

template <class T>
void paged_attention(const Inputs<T>& in) {
    const std::vector<Task> tasks = tasks_of(in, Pool::instance().num_threads());
    Pool::instance().run(int64_t(tasks.size()), [&](int64_t index, int) {
        thread_local std::vector<Scratch<T>> scratch;
        const Task& task = tasks[index];
        if (int64_t(scratch.size()) < task.num_heads) scratch.resize(task.num_heads);
        std::vector<Run<T>> runs;
        runs.reserve(task.num_heads);
        for (int64_t head = 0; head < task.num_heads; ++head)
            runs.emplace_back(in, task, task.first_head + head, scratch[head]);
        for (int64_t begin = runs[0].first_tile(); begin < runs[0].num_keys(); begin += TILE_KEYS)
            for (Run<T>& run : runs) run.step(begin);
        for (Run<T>& run : runs) run.finish();
        amx::end_attention();
    });
}

}  // namespace attention
