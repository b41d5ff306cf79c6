// Projections to heads: convolution, SiLU and length in one pass over memory, forward and backward; for ops/heads.
//
// A job is a block of consecutive tokens of one row. Blocks do not depend on threads, so neither do results: the
// backward pass makes the gradients of the three tokens behind its block anew, and leaves the sums for the taps apart.
#pragma once

#include <atomic>

#include "problem.h"
#include "threads.h"

namespace titans {

constexpr int TAPS = 4, BLOCK = 128;
enum Form { PLAIN, UNIT, CLIPPED };

// What Python hands over; all tensors but the incoming gradients are contiguous. Mirrored in ops/heads/native.py.
struct Projection {
    int64_t batch, tokens, parts, heads, width, threads;
    const int64_t* forms;  // of each part
    double limit;          // root mean square of CLIPPED
    const void* x;         // [batch, tokens, channels]; channels = parts * heads * width
    const void* taps;      // [TAPS, channels]
    const void* tail;      // [batch, TAPS - 1, channels]
    void* const* outputs;  // of each part [batch, heads, tokens, width]

    // Backward only.
    const Stream* grads;  // of each output; strides of row, head and token
    void *x_grad, *tail_grad;
    void* taps_grad;  // of each block [batch * blocks, TAPS, channels]

    int64_t channels() const { return parts * heads * width; }
    int64_t blocks() const { return (tokens + BLOCK - 1) / BLOCK; }
};

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

// How a head's activations s become its output, factor * s, and a gradient g of that one of s:
// factor * g - pull * (g . s) * s. NaN stays NaN.
template <class T> struct Length {
    T factor = 1, pull = 0;

    Length(int form, T square, T width, T limit) {
        if (form == UNIT) {
            const T norm = std::sqrt(square), least = T(1e-12);
            factor = 1 / (norm < least ? least : norm);
            pull = norm >= least ? factor * factor * factor : 0;
        } else if (form == CLIPPED) {
            const T power = square / width, most = limit * limit;
            factor = power < most ? 1 : limit / std::sqrt(power);
            pull = power >= most ? factor / square : 0;
        }
    }
};

template <class T> class Heads {
    const Projection& p;
    const int64_t width, channels;
    const T* taps;
    std::vector<T> value, slope, bent;  // of one token; gradients before the activation, of a block and what is behind

    // A token's inputs; before the first one those of the tail.
    const T* input(int64_t row, int64_t token) const {
        if (token >= 0) return (const T*)p.x + (row * p.tokens + token) * channels;
        return (const T*)p.tail + (row * (TAPS - 1) + TAPS - 1 + token) * channels;
    }

    // Call f(j, count, convolved) for each vector of a head's channels at a token; they start at `column`.
    template <class F> void convolve(int64_t row, int64_t token, int64_t column, F f) const {
        const T* x[TAPS];
        for (int i = 0; i < TAPS; ++i) x[i] = input(row, token - TAPS + 1 + i) + column;
        for (int64_t j = 0; j < width; j += LANES<T>) {
            Vec<T> z = load(x[0] + j, width - j) * load(taps + column + j, width - j);
            for (int i = 1; i < TAPS; ++i)
                z += load(x[i] + j, width - j) * load(taps + i * channels + column + j, width - j);
            f(j, width - j, z);
        }
    }

    void write(int64_t row, int64_t token, int64_t part, int64_t head) const {
        T* out = (T*)p.outputs[part] + ((row * p.heads + head) * p.tokens + token) * width;
        Vec<T> square = {};
        convolve(row, token, (part * p.heads + head) * width, [&](int64_t j, int64_t count, Vec<T> z) {
            const Vec<T> s = bend<T, SILU>(z).value;
            square += s * s;
            store(out + j, s, count);
        });
        if (p.forms[part] == PLAIN) return;
        const Length<T> length(p.forms[part], sum<T>(square), width, p.limit);
        for (int64_t j = 0; j < width; j += LANES<T>)
            store(out + j, load(out + j, width - j) * length.factor, width - j);
    }

    // The gradient before the activation, of one token.
    void unbend(int64_t row, int64_t token, int64_t part, int64_t head, T* out) {
        const Stream& grads = p.grads[part];
        const T* grad = (const T*)grads.data + row * grads.strides[0] + head * grads.strides[1] + token * grads.strides[2];
        Vec<T> square = {}, along = {};
        convolve(row, token, (part * p.heads + head) * width, [&](int64_t j, int64_t count, Vec<T> z) {
            const Bend<T> s = bend<T, SILU>(z);
            square += s.value * s.value;
            along += s.value * load(grad + j, count);
            store(&value[j], s.value);
            store(&slope[j], s.slope);
        });
        const Length<T> length(p.forms[part], sum<T>(square), width, p.limit);
        const T pull = length.pull * sum<T>(along);
        for (int64_t j = 0; j < width; j += LANES<T>)
            store(out + j, (load(grad + j, width - j) * length.factor - load(&value[j]) * pull) * load(&slope[j]));
    }

    // The gradients of one vector of channels, along a block whose gradients before the activation are `bent`.
    void unconvolve(int64_t row, int64_t first, int64_t last, int64_t column, int64_t count, const T* bent, T* sums) const {
        Vec<T> tap[TAPS], total[TAPS] = {}, x[TAPS], g[TAPS];  // tokens before and behind: a window each
        for (int i = 0; i < TAPS; ++i) tap[i] = load(taps + i * channels + column, count);
        for (int i = 0; i < TAPS - 1; ++i) x[i + 1] = load(input(row, first - TAPS + 1 + i) + column, count);
        for (int i = 0; i < TAPS - 1; ++i) g[i + 1] = load(bent + i * padded<T>(width));
        T* out = (T*)p.x_grad + (row * p.tokens + first) * channels + column;
        for (int64_t token = first; token < last; ++token, out += channels) {
            for (int i = 0; i < TAPS - 1; ++i) x[i] = x[i + 1], g[i] = g[i + 1];
            x[TAPS - 1] = load(input(row, token) + column, count);
            g[TAPS - 1] = load(bent + (token - first + TAPS - 1) * padded<T>(width));
            Vec<T> sum = {};
            for (int i = 0; i < TAPS; ++i) total[i] += x[i] * g[0], sum += tap[TAPS - 1 - i] * g[i];
            store(out, sum, count);
        }
        for (int i = 0; i < TAPS; ++i) store(sums + i * channels + column, total[i], count);
    }

    void reach_tail(int64_t row, int64_t column, int64_t count, const T* bent) const {
        for (int t = 0; t < TAPS - 1; ++t) {
            Vec<T> sum = {};
            for (int i = 0; i <= t; ++i)
                sum += load(taps + i * channels + column, count) * load(bent + (t - i) * padded<T>(width));
            store((T*)p.tail_grad + (row * (TAPS - 1) + t) * channels + column, sum, count);
        }
    }

public:
    Heads(const Projection& p, bool back) : p(p), width(p.width), channels(p.channels()), taps((const T*)p.taps) {
        if (!back) return;
        value.resize(padded<T>(width));
        slope.resize(padded<T>(width));
        bent.resize((BLOCK + TAPS - 1) * padded<T>(width));
    }

    void forward(int64_t row, int64_t first, int64_t last) const {
        for (int64_t part = 0; part < p.parts; ++part)
            for (int64_t head = 0; head < p.heads; ++head)
                for (int64_t token = first; token < last; ++token) write(row, token, part, head);
    }

    void backward(int64_t row, int64_t first, int64_t last) {
        T* sums = (T*)p.taps_grad + (row * p.blocks() + first / BLOCK) * TAPS * channels;
        const int64_t known = std::min<int64_t>(last + TAPS - 1, p.tokens);
        for (int64_t i = 0; i < p.parts * p.heads; ++i) {
            for (int64_t token = first; token < known; ++token)
                unbend(row, token, i / p.heads, i % p.heads, &bent[(token - first) * padded<T>(width)]);
            std::fill(&bent[(known - first) * padded<T>(width)], bent.data() + bent.size(), T(0));
            for (int64_t j = 0; j < width; j += LANES<T>) {
                unconvolve(row, first, last, i * width + j, width - j, &bent[j], sums);
                if (first == 0) reach_tail(row, i * width + j, width - j, &bent[j]);
            }
        }
    }
};

template <class T> inline void run_heads(const Projection& p, bool back) {
    const int64_t jobs = p.batch * p.blocks();
    std::atomic<int64_t> next{0};
    in_threads(std::min(p.threads, jobs), [&](int64_t) {
        Heads<T> heads(p, back);
        for (int64_t job; (job = next++) < jobs;) {
            const int64_t row = job / p.blocks(), first = job % p.blocks() * BLOCK;
            const int64_t last = std::min<int64_t>(first + BLOCK, p.tokens);
            if (back) heads.backward(row, first, last);
            else heads.forward(row, first, last);
        }
    });
}

}  // namespace titans
