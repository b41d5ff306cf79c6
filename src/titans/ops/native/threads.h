// Sharing work among threads.
#pragma once

#include <cstdint>
#include <thread>
#include <vector>

namespace titans {

// Call work(thread) for each of them at once, one of them this one.
template <class Work> inline void in_threads(int64_t threads, Work work) {
    std::vector<std::thread> others;
    for (int64_t i = 1; i < threads; ++i) others.emplace_back(work, i);
    work(0);
    for (auto& thread : others) thread.join();
}

}  // namespace titans
