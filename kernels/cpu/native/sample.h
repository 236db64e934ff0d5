// Samples one token per row of logits: greedy, or by Gumbel-max. Twin: kernels/sampling.py. Plain double arithmetic in a
// fixed order per row, without fused multiply-add: batch-invariant, and every instruction set draws the same token.
#pragma once
#include <algorithm>
#include <cmath>
#include <limits>

#include "pool.h"

namespace sample {

// DRAW in kernels/interface.py. Temperature 0 is greedy.
struct Draw {
    double temperature, top_p, min_p;
    int64_t top_k;
    uint64_t seed;
    int64_t choice, index;
};

struct Candidate {
    double score;  // first the logit, then logit / temperature
    int64_t id;
};

// Natural logarithm of a positive normal number to within one unit in the last place: fdlibm's __ieee754_log without its
// branches (https://netlib.org/fdlibm/e_log.c), so that compilers can vectorise it.
inline double log(double x) {
    uint64_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    constexpr uint64_t root_half = 0x3fe6a09e667f3bcd, bias = uint64_t(1024) << 52;
    const uint64_t power = (bits - root_half + bias) >> 52;  // 1024 more than that of two
    const uint64_t fraction_bits = bits - (power << 52) + bias, power_bits = power + 0x4330000000000000;
    double fraction, k;
    std::memcpy(&fraction, &fraction_bits, sizeof fraction);  // in [sqrt(1/2), sqrt(2))
    std::memcpy(&k, &power_bits, sizeof k);
    k -= 4503599627370496.0 + 1024.0;
    const double f = fraction - 1.0, s = f / (2.0 + f), z = s * s, half_square = 0.5 * f * f;
    double r = 1.479819860511658591e-01;
    for (double term : {1.531383769920937332e-01, 1.818357216161805012e-01, 2.222219843214978396e-01,
                        2.857142874366239149e-01, 3.999999999940941908e-01, 6.666666666666735130e-01})
        r = r * z + term;
    r *= z;
    return k * 6.93147180369123816490e-01 -
           ((half_square - (s * (half_square + r) + k * 1.90821492927058770002e-10)) - f);
}

// e^x for x <= 0 to within some units in the last place; 0 below -700.
inline double exp(double x) {
    const double bounded = x < -700.0 ? -700.0 : x;
    const double shifted = bounded * 1.44269504088896338700 + 6755399441055744.0;  // its last bits hold the nearest integer
    uint64_t n_bits;
    std::memcpy(&n_bits, &shifted, sizeof n_bits);
    const double n = shifted - 6755399441055744.0;
    const double r = (bounded - n * 6.93147180369123816490e-01) - n * 1.90821492927058770002e-10;
    double sum = 1.0 / 6227020800.0;
    for (double factorial : {479001600.0, 39916800.0, 3628800.0, 362880.0, 40320.0, 5040.0, 720.0, 120.0, 24.0, 6.0, 2.0, 1.0, 1.0})
        sum = sum * r + 1.0 / factorial;
    const uint64_t power_bits = (n_bits + 1023) << 52;
    double power;
    std::memcpy(&power, &power_bits, sizeof power);
    return x < -700.0 ? 0.0 : sum * power;
}

constexpr int LANES = 16;  // Philox counters computed together

// Four words for each of the counters first, first + 1, ...: Philox4x32-10, as in kernels/philox.py.
template <int COUNT>
inline void philox(const Draw& draw, uint32_t first, uint32_t (&words)[4][COUNT]) {
    for (int lane = 0; lane < COUNT; ++lane) {
        words[0][lane] = first + uint32_t(lane);
        words[1][lane] = uint32_t(draw.index);
        words[2][lane] = uint32_t(draw.choice);
        words[3][lane] = 0;  // PURPOSE_SAMPLE
    }
    uint32_t key0 = uint32_t(draw.seed), key1 = uint32_t(draw.seed >> 32);
    for (int round = 0; round < 10; ++round, key0 += 0x9E3779B9, key1 += 0xBB67AE85)
        for (int lane = 0; lane < COUNT; ++lane) {
            const uint64_t a = uint64_t(0xD2511F53) * words[0][lane], b = uint64_t(0xCD9E8D57) * words[2][lane];
            words[0][lane] = uint32_t(b >> 32) ^ words[1][lane] ^ key0;
            words[1][lane] = uint32_t(b);
            words[2][lane] = uint32_t(a >> 32) ^ words[3][lane] ^ key1;
            words[3][lane] = uint32_t(a);
        }
}

inline double gumbel(uint32_t word) { return -log(-log((double(word) + 0.5) * 0x1p-32)); }

// Argmax; the lowest id of equal logits.
inline int64_t largest(const float* logits, int64_t vocab) {
    simd::Floats top = simd::broadcast(-std::numeric_limits<float>::infinity());
    int64_t at = 0;
    for (; at + simd::LANES <= vocab; at += simd::LANES) top = simd::max(simd::load(logits + at), top);
    float best = simd::largest(top);
    for (; at < vocab; ++at) best = std::max(best, logits[at]);
    const int64_t found = std::find(logits, logits + vocab, best) - logits;
    return found < vocab ? found : 0;  // only NaN: no maximum is found
}

// Argmax of score plus noise over the whole vocabulary.
inline int64_t draw_from_all(const Draw& draw, const float* logits, int64_t vocab) {
    constexpr int count = 4 * LANES;
    double best[count], scores[count], noise[4][LANES];
    int64_t rounds[count] = {};
    std::fill_n(best, count, -std::numeric_limits<double>::infinity());
    for (int64_t begin = 0; begin < vocab; begin += count) {
        uint32_t words[4][LANES];
        philox<LANES>(draw, uint32_t(begin / 4), words);
        for (int word = 0; word < 4; ++word)
            for (int lane = 0; lane < LANES; ++lane) noise[word][lane] = gumbel(words[word][lane]);
        float padded[count];
        std::fill_n(padded, count, -std::numeric_limits<float>::infinity());
        std::memcpy(padded, logits + begin, std::min<int64_t>(count, vocab - begin) * sizeof(float));
        for (int i = 0; i < count; ++i) scores[i] = double(padded[i]) / draw.temperature;
        for (int i = 0; i < count; ++i) scores[i] += noise[i % 4][i / 4];
        for (int i = 0; i < count; ++i) {
            rounds[i] = scores[i] > best[i] ? begin : rounds[i];
            best[i] = scores[i] > best[i] ? scores[i] : best[i];
        }
    }
    int winner = 0;
    for (int i = 1; i < count; ++i)
        if (best[i] > best[winner] || (best[i] == best[winner] && rounds[i] + i < rounds[winner] + winner)) winner = i;
    return rounds[winner] + winner;
}

inline bool before(const Candidate& a, const Candidate& b) { return a.score > b.score || (a.score == b.score && a.id < b.id); }

// Calls work(id) for each logit >= `floor`, in order of ids; work may raise `floor`.
template <class F>
void each_above(const float* logits, int64_t vocab, const float& floor, F&& work) {
    for (int64_t begin = 0; begin < vocab; begin += simd::LANES) {
        const int64_t end = std::min(vocab, begin + simd::LANES);
        if (end - begin == simd::LANES && simd::largest(simd::load(logits + begin)) < floor) continue;
        for (int64_t id = begin; id < end; ++id)
            if (logits[id] >= floor) work(id);
    }
}

// Top-k: the `count` largest logits; of equal ones the lowest ids.
inline void take_largest(const float* logits, int64_t vocab, int64_t count, std::vector<Candidate>& kept) {
    float floor = -std::numeric_limits<float>::infinity();
    each_above(logits, vocab, floor, [&](int64_t id) {  // `kept` is a heap with its last candidate on top
        if (int64_t(kept.size()) == count) {
            if (!before({logits[id], id}, kept.front())) return;
            std::pop_heap(kept.begin(), kept.end(), before);
            kept.pop_back();
        }
        kept.push_back({logits[id], id});
        std::push_heap(kept.begin(), kept.end(), before);
        if (int64_t(kept.size()) == count) floor = float(kept.front().score);
    });
}

// The sum of e^(score - top) over the whole vocabulary.
inline double mass_of(const Draw& draw, const float* logits, int64_t vocab, double top) {
    double sums[LANES] = {};
    int64_t at = 0;
    for (; at + LANES <= vocab; at += LANES)
        for (int lane = 0; lane < LANES; ++lane) sums[lane] += exp(double(logits[at + lane]) / draw.temperature - top);
    for (; at < vocab; ++at) sums[0] += exp(double(logits[at]) / draw.temperature - top);
    double sum = 0.0;
    for (double one : sums) sum += one;
    return sum;
}

// The candidates that remain after min-p, top-k and top-p.
inline void take_likely(const Draw& draw, const float* logits, int64_t vocab, std::vector<Candidate>& kept) {
    const bool top_k = draw.top_k > 0 && draw.top_k < vocab;
    const double top = double(logits[largest(logits, vocab)]) / draw.temperature;
    const double least = draw.min_p > 0.0 ? top + std::log(draw.min_p) : -std::numeric_limits<double>::infinity();
    double total = 0.0;
    kept.clear();
    if (top_k) {
        take_largest(logits, vocab, draw.top_k, kept);
    } else {
        double floor = least;
        if (draw.min_p <= 0.0) {
            // A token with less than (1 - top_p) / vocab of the mass comes after all tokens that top-p keeps.
            total = mass_of(draw, logits, vocab, top);
            floor = top + std::log((1.0 - draw.top_p) * total / double(vocab));
        }
        const float logit_floor = std::nextafter(float(floor * draw.temperature), -std::numeric_limits<float>::infinity());
        each_above(logits, vocab, logit_floor, [&](int64_t id) { kept.push_back({logits[id], id}); });
    }
    for (Candidate& one : kept) one.score /= draw.temperature;
    std::erase_if(kept, [=](const Candidate& one) { return one.score < least; });
    if (draw.top_p >= 1.0) return;
    std::sort(kept.begin(), kept.end(), before);
    if (total == 0.0)
        for (const Candidate& one : kept) total += exp(one.score - top);
    double mass = 0.0;
    size_t count = 0;
    for (; count < kept.size() && (count == 0 || mass < draw.top_p * total); ++count) mass += exp(kept[count].score - top);
    kept.resize(count);
}

inline int64_t draw_from_some(const Draw& draw, const float* logits, int64_t vocab) {
    thread_local std::vector<Candidate> kept;
    take_likely(draw, logits, vocab, kept);
    Candidate best{-std::numeric_limits<double>::infinity(), 0};
    for (const Candidate& one : kept) {
        uint32_t words[4][1];
        philox<1>(draw, uint32_t(one.id / 4), words);
        const Candidate noisy{one.score + gumbel(words[one.id % 4][0]), one.id};
        if (before(noisy, best)) best = noisy;
    }
    return best.id;
}

inline bool all_finite(const float* x, int64_t count) {
    uint32_t bad = 0;
    for (int64_t i = 0; i < count; ++i) bad |= (to_bits(x[i]) & 0x7f800000) == 0x7f800000;
    return bad == 0;
}

// logits, raw [rows, vocab] -> ids, healthy [rows]; undefined ids are 0. Twin: sampling.draw.
inline void draw(const float* logits, const float* raw, int64_t rows, int64_t vocab, const Draw* draws, int64_t* ids,
                 bool* healthy) {
    Pool::instance().run(rows, [=](int64_t row, int) {
        const Draw& one = draws[row];
        const float* const own = logits + row * vocab;
        healthy[row] = all_finite(raw + row * vocab, vocab);
        if (!healthy[row])
            ids[row] = 0;
        else if (one.temperature == 0.0)
            ids[row] = largest(own, vocab);
        else if (one.min_p > 0.0 || one.top_p < 1.0 || (one.top_k > 0 && one.top_k < vocab))
            ids[row] = draw_from_some(one, own, vocab);
        else
            ids[row] = draw_from_all(one, own, vocab);
    });
}

}  // namespace sample
