// The thread pool of the kernels. A kernel runs as numbered tasks; no result depends on which thread runs a task. An idle
// thread spins for SPIN, because the next kernel mostly starts within microseconds, and then sleeps, so that its core
// can run a thread that another process has preempted.
#pragma once
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <thread>
#include <vector>
#if defined(__linux__)
#include <pthread.h>
#endif

#include "simd.h"
#include "tasks.h"

class Pool {
public:
    static Pool& instance() {
        static Pool* pool = new Pool;  // never destroyed: helper threads may still sleep when the process ends
        return *pool;
    }

    int num_threads() const { return int(helpers_.size()) + 1; }

    // Must not be called while a kernel runs.
    void set_num_threads(int count) {
        stop_helpers();
        tasks_.set_num_threads(count);
        for (int index = 1; index < count; ++index)
            helpers_.emplace_back([this, index, round = round_.load()] { help(index, round); });
    }

    // Total wall time of all calls of run().
    int64_t nanoseconds() const { return nanoseconds_; }

    // Calls work(task, thread) for each task in [0, count); returns when all are done. One caller at a time.
    template <class F>
    void run(int64_t count, F&& work) {
        const auto began = std::chrono::steady_clock::now();
        share(count, work);
        nanoseconds_ += std::chrono::nanoseconds(std::chrono::steady_clock::now() - began).count();
    }

private:
    static constexpr std::chrono::microseconds SPIN{100};
    static constexpr int OPEN = 1 << 30;

    template <class F>
    void share(int64_t count, F& work) {
        if (helpers_.empty() || count <= 1) {
            for (int64_t task = 0; task < count; ++task) work(task, 0);
            return;
        }
        const std::function<void(int64_t, int)> shared = std::ref(work);
        work_ = &shared;
        tasks_.deal(count);
        inside_.store(OPEN);
        round_.fetch_add(1);  // sequentially consistent: visible before asleep_ is read
        if (asleep_.load() > 0) round_.notify_all();
        take(0);
        inside_.fetch_and(~OPEN);  // late helpers stay out: no task is left
        if (spin([&] { return inside_.load() == 0; })) return;
        waits_.store(true);
        for (int left; (left = inside_.load()) > 0;) inside_.wait(left);
        waits_.store(false);
    }

    // Spins until `done` or for SPIN; returns whether it is done.
    template <class F>
    static bool spin(F&& done) {
        const auto until = std::chrono::steady_clock::now() + SPIN;
        for (int tries = 1; !done(); ++tries) {
            simd::relax();
            if (tries % 64 == 0 && std::chrono::steady_clock::now() > until) return false;
        }
        return true;
    }

    void take(int thread) {
        for (int64_t task; (task = tasks_.take(thread)) != Tasks::NONE;) (*work_)(task, thread);
    }

    void help(int thread, uint32_t seen) {
#if defined(__linux__)
        pthread_setname_np(pthread_self(), "kernels");  // as top and /proc show it
#endif
        for (;;) {
            wait_for_round(seen);
            seen = round_.load();
            if (stopping_) return;
            int inside = inside_.load();
            while ((inside & OPEN) != 0 && !inside_.compare_exchange_weak(inside, inside + 1)) {
            }
            if ((inside & OPEN) == 0) continue;
            take(thread);
            if ((inside_.fetch_sub(1) & ~OPEN) == 1 && waits_.load()) inside_.notify_one();
        }
    }

    void wait_for_round(uint32_t seen) {
        if (spin([&] { return round_.load(std::memory_order_acquire) != seen; })) return;
        asleep_.fetch_add(1);
        round_.wait(seen);
        asleep_.fetch_sub(1);
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
    Tasks tasks_;
    int64_t nanoseconds_ = 0;
    std::atomic<bool> stopping_{false};
    std::atomic<int> inside_{0};  // number of helpers in the kernel, plus OPEN while more may enter
    std::atomic<int> asleep_{0};  // number of sleeping helpers
    std::atomic<bool> waits_{false};  // the caller of run() sleeps until `inside_` is 0
    std::atomic<uint32_t> round_{0};  // number of the current kernel
};
