// Work on tokens that need no order, for the operations around the memory.
//
// A job is a block of consecutive tokens of one row. Blocks do not depend on threads, and what is summed over tokens is
// left apart for each block, so results do not depend on threads either.
#pragma once

#include <algorithm>
#include <atomic>

#include "threads.h"
#include "vector.h"

namespace titans {

constexpr int BLOCK = 32;  // mirrored in ops/native/__init__.py

inline int64_t blocks(int64_t tokens) { return (tokens + BLOCK - 1) / BLOCK; }

// Share out blocks among threads, each with a `Pass` of its own for a problem: run(pass, row, first, last).
template <class Pass, class Problem, class Run> inline void run_blocks(const Problem& p, Run run) {
    const int64_t jobs = p.batch * blocks(p.tokens);
    std::atomic<int64_t> next{0};
    in_threads(std::min(p.threads, jobs), [&](int64_t) {
        Pass pass(p);
        for (int64_t job; (job = next++) < jobs;) {
            const int64_t first = job % blocks(p.tokens) * BLOCK;
            run(pass, job / blocks(p.tokens), first, std::min<int64_t>(first + BLOCK, p.tokens));
        }
    });
}

// Call f(j, count) for each vector of a row: the count is a constant for all but a last one that is not full.
template <class T, class F> inline void each_vector(int64_t width, F f) {
    int64_t j = 0;
    for (; j + LANES<T> <= width; j += LANES<T>) f(j, std::integral_constant<int64_t, LANES<T>>{});
    if (j < width) f(j, width - j);
}

// The first `count` numbers, and 0 in the other lanes.
template <class T> inline Vec<T> load(const T* p, int64_t count) {
    if (count >= LANES<T>) return load(p);
    Vec<T> v = {};
    std::memcpy(&v, p, count * sizeof(T));
    return v;
}

template <class T> inline void store(T* p, Vec<T> v, int64_t count) {
    std::memcpy(p, &v, std::min<int64_t>(count, LANES<T>) * sizeof(T));
}

}  // namespace titans
