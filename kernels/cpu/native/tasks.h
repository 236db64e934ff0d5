// Work stealing among the threads of the pool. Each thread starts with a run of consecutive tasks, because sequential
// memory reads are faster; a thread without tasks steals half of the longest remaining run.
#pragma once
#include <atomic>
#include <cstdint>
#include <vector>

class Tasks {
public:
    static constexpr int64_t NONE = -1;

    // Must not be called while a kernel runs.
    void set_num_threads(int count) { runs_ = std::vector<Run>(count); }

    // Divides the tasks [0, count) among the threads, before a kernel.
    void deal(int64_t count) {
        const int64_t threads = int64_t(runs_.size());
        for (int64_t thread = 0; thread < threads; ++thread)
            runs_[thread].left.store(run(count * thread / threads, count * (thread + 1) / threads));
    }

    // Returns a task that no other thread gets, or NONE.
    int64_t take(int thread) {
        std::atomic<uint64_t>& own = runs_[thread].left;
        do {
            uint64_t left = own.load();
            while (size(left) > 0)
                if (own.compare_exchange_weak(left, run(first(left) + 1, last(left)))) return first(left);
        } while (take_half(own));
        return NONE;
    }

private:
    struct alignas(64) Run {  // a cache line of its own
        std::atomic<uint64_t> left{0};
    };

    static uint64_t run(int64_t first, int64_t last) { return uint64_t(last) << 32 | uint64_t(first); }
    static int64_t first(uint64_t run) { return int64_t(run & 0xffffffff); }
    static int64_t last(uint64_t run) { return int64_t(run >> 32); }
    static int64_t size(uint64_t run) { return last(run) - first(run); }

    // Steals the second half of the longest run, or a run's only task; false if no task is left.
    bool take_half(std::atomic<uint64_t>& own) {
        for (;;) {
            Run* longest = &runs_[0];
            for (Run& other : runs_)
                if (size(other.left.load()) > size(longest->left.load())) longest = &other;
            uint64_t left = longest->left.load();
            if (size(left) <= 0) return false;
            const int64_t middle = first(left) + size(left) / 2;
            if (!longest->left.compare_exchange_strong(left, run(first(left), middle))) continue;
            own.store(run(middle, last(left)));
            return true;
        }
    }

    std::vector<Run> runs_{1};
};
