// The threads that share the kernels' work. A kernel hands out numbered tasks; which thread takes which never shows in a
// result. Helpers spin for a moment after a kernel, because the next one follows within microseconds, then they sleep.
#pragma once
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "simd.h"

class Pool {
public:
    static Pool& instance() {
        static Pool* pool = new Pool;  // never destroyed: helpers may still sleep when the process ends
        return *pool;
    }

    int num_threads() const { return int(helpers_.size()) + 1; }

    // Not while a kernel runs.
    void set_num_threads(int count) {
        stop_helpers();
        for (int index = 1; index < count; ++index)
            helpers_.emplace_back([this, index, round = round_.load()] { help(index, round); });
    }

    // Calls work(task, thread) for each task in [0, count); returns when all are done.
    template <class F>
    void run(int64_t count, F&& work) {
        if (helpers_.empty() || count <= 1) {
            for (int64_t task = 0; task < count; ++task) work(task, 0);
            return;
        }
        const std::function<void(int64_t, int)> shared = std::ref(work);
        work_ = &shared;
        count_ = count;
        next_.store(0, std::memory_order_relaxed);
        busy_.store(int(helpers_.size()), std::memory_order_relaxed);
        round_.fetch_add(1);  // before the look at who sleeps, in every thread's eyes
        if (asleep_.load() > 0) round_.notify_all();
        take(0);
        while (busy_.load(std::memory_order_acquire) > 0) simd::relax();
    }

private:
    static constexpr std::chrono::microseconds SPIN{100};

    void take(int thread) {
        for (int64_t task; (task = next_.fetch_add(1, std::memory_order_relaxed)) < count_;) (*work_)(task, thread);
    }

    void help(int thread, uint32_t seen) {
        for (;;) {
            wait_for_round(seen);
            ++seen;
            if (stopping_) return;
            take(thread);
            busy_.fetch_sub(1, std::memory_order_release);
        }
    }

    void wait_for_round(uint32_t seen) {
        const auto until = std::chrono::steady_clock::now() + SPIN;
        for (int tries = 0; round_.load(std::memory_order_acquire) == seen; ++tries) {
            simd::relax();
            if (tries % 64 != 63 || std::chrono::steady_clock::now() < until) continue;
            asleep_.fetch_add(1);
            round_.wait(seen);
            asleep_.fetch_sub(1);
        }
    }

    void stop_helpers() {
        if (helpers_.empty()) return;
        stopping_ = true;
        round_.fetch_add(1);
        round_.notify_all();
        for (std::thread& helper : helpers_) helper.join();
        helpers_.clear();
        stopping_ = false;
    }

    std::vector<std::thread> helpers_;
    const std::function<void(int64_t, int)>* work_ = nullptr;
    int64_t count_ = 0;
    bool stopping_ = false;
    std::atomic<int64_t> next_{0};
    std::atomic<int> busy_{0};
    std::atomic<int> asleep_{0};
    std::atomic<uint32_t> round_{0};
};
