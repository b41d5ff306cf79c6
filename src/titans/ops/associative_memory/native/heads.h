// Projections to heads: convolution, SiLU and length in one pass over memory, forward and backward; for ops/heads.
//
// The backward pass makes the gradients of the three tokens behind its block anew.
#pragma once

#include "blocks.h"
#include "problem.h"

namespace titans {

constexpr int TAPS = 4;
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
};

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
    // Of one head in a block, rows of padded width, so that they lie in the first-level cache side by side:
    const int64_t pitch;
    std::vector<T> inputs;        // from three tokens before the block to three behind
    std::vector<T> bent;          // gradients before the activation, from the block's start to three tokens behind
    std::vector<T> grads;         // of the inputs
    std::vector<T> value, slope;  // of one token

    // A token's inputs; before the first one those of the tail.
    const T* input(int64_t row, int64_t token) const {
        if (token >= 0) return (const T*)p.x + (row * p.tokens + token) * channels;
        return (const T*)p.tail + (row * (TAPS - 1) + TAPS - 1 + token) * channels;
    }

    // Call f(j, count, convolved) for each vector of a head's channels, which start at `column`.
    template <class F> void convolve(const T* const (&x)[TAPS], int64_t column, F f) const {
        each_vector<T>(width, [&](int64_t j, auto count) {
            Vec<T> z = load(x[0] + j, count) * load(taps + column + j, count);
            for (int i = 1; i < TAPS; ++i) z += load(x[i] + j, count) * load(taps + i * channels + column + j, count);
            f(j, count, z);
        });
    }

    void write(int64_t row, int64_t token, int64_t part, int64_t head) const {
        T* out = (T*)p.outputs[part] + ((row * p.heads + head) * p.tokens + token) * width;
        const int64_t column = (part * p.heads + head) * width;
        const T* x[TAPS];
        for (int i = 0; i < TAPS; ++i) x[i] = input(row, token - TAPS + 1 + i) + column;
        Vec<T> square = {};
        convolve(x, column, [&](int64_t j, auto count, Vec<T> z) {
            const Vec<T> s = bend<T, SILU>(z).value;
            square += s * s;
            store(out + j, s, count);
        });
        if (p.forms[part] == PLAIN) return;
        const Length<T> length(p.forms[part], sum<T>(square), width, p.limit);
        each_vector<T>(width, [&](int64_t j, auto count) { store(out + j, load(out + j, count) * length.factor, count); });
    }

    void gather(int64_t row, int64_t first, int64_t known, int64_t column) {
        T* to = inputs.data();
        for (int64_t token = first - TAPS + 1; token < known; ++token, to += pitch)
            std::memcpy(to, input(row, token) + column, width * sizeof(T));
    }

    // The gradient before the activation, of one token, the i-th of the block.
    void unbend(int64_t i, int form, int64_t column, const T* grad) {
        const T* x[TAPS];
        for (int k = 0; k < TAPS; ++k) x[k] = &inputs[(i + k) * pitch];
        Vec<T> square = {}, along = {};
        convolve(x, column, [&](int64_t j, auto count, Vec<T> z) {
            const Bend<T> s = bend<T, SILU>(z);
            square += s.value * s.value;
            along += s.value * load(grad + j, count);
            store(&value[j], s.value);
            store(&slope[j], s.slope);
        });
        const Length<T> length(form, sum<T>(square), width, p.limit);
        const T pull = length.pull * sum<T>(along);
        each_vector<T>(width, [&](int64_t j, auto count) {
            store(&bent[i * pitch + j], (load(grad + j, count) * length.factor - load(&value[j]) * pull) * load(&slope[j]));
        });
    }

    // The gradients of one vector of channels, from those before the activation of `tokens` tokens and three behind.
    template <class Count> void unconvolve(int64_t tokens, int64_t j, int64_t column, Count count, T* sums) {
        Vec<T> tap[TAPS], total[TAPS] = {}, x[TAPS], g[TAPS];  // tokens before and behind: a window each
        for (int i = 0; i < TAPS; ++i) tap[i] = load(taps + i * channels + column + j, count);
        for (int i = 0; i < TAPS - 1; ++i) x[i + 1] = load(&inputs[i * pitch + j]), g[i + 1] = load(&bent[i * pitch + j]);
        for (int64_t token = 0; token < tokens; ++token) {
            for (int i = 0; i < TAPS - 1; ++i) x[i] = x[i + 1], g[i] = g[i + 1];
            x[TAPS - 1] = load(&inputs[(token + TAPS - 1) * pitch + j]);
            g[TAPS - 1] = load(&bent[(token + TAPS - 1) * pitch + j]);
            Vec<T> sum = {};
            for (int i = 0; i < TAPS; ++i) total[i] += x[i] * g[0], sum += tap[TAPS - 1 - i] * g[i];
            store(&grads[token * pitch + j], sum);
        }
        for (int i = 0; i < TAPS; ++i) store(sums + i * channels + column + j, total[i], count);
    }

    template <class Count> void reach_tail(int64_t row, int64_t j, int64_t column, Count count) const {
        for (int t = 0; t < TAPS - 1; ++t) {
            Vec<T> sum = {};
            for (int i = 0; i <= t; ++i)
                sum += load(taps + i * channels + column + j, count) * load(&bent[(t - i) * pitch + j]);
            store((T*)p.tail_grad + (row * (TAPS - 1) + t) * channels + column + j, sum, count);
        }
    }

public:
    explicit Heads(const Projection& p)
        : p(p), width(p.width), channels(p.channels()), taps((const T*)p.taps), pitch(padded<T>(width)),
          inputs((BLOCK + 2 * TAPS - 2) * pitch), bent((BLOCK + TAPS - 1) * pitch), grads(BLOCK * pitch), value(pitch),
          slope(pitch) {}

    void forward(int64_t row, int64_t first, int64_t last) const {
        for (int64_t token = first; token < last; ++token)
            for (int64_t i = 0; i < p.parts * p.heads; ++i) write(row, token, i / p.heads, i % p.heads);
    }

    void backward(int64_t row, int64_t first, int64_t last) {
        T* sums = (T*)p.taps_grad + (row * blocks(p.tokens) + first / BLOCK) * TAPS * channels;
        const int64_t known = std::min<int64_t>(last + TAPS - 1, p.tokens);
        // Each head's channels are short pieces far apart, which no processor foresees: bring in whole tokens.
        for (const T* x = input(row, first); x < input(row, known - 1) + channels; x += 64 / sizeof(T)) __builtin_prefetch(x);
        for (int64_t i = 0; i < p.parts * p.heads; ++i) {
            const int64_t part = i / p.heads, column = i * width;
            const Stream& in = p.grads[part];
            const T* grad = (const T*)in.data + row * in.strides[0] + i % p.heads * in.strides[1];
            gather(row, first, known, column);
            for (int64_t token = first; token < known; ++token)
                unbend(token - first, p.forms[part], column, grad + token * in.strides[2]);
            std::fill(bent.begin() + (known - first) * pitch, bent.end(), T(0));
            each_vector<T>(width, [&](int64_t j, auto count) {
                unconvolve(last - first, j, column, count, sums);
                if (first == 0) reach_tail(row, j, column, count);
            });
            T* out = (T*)p.x_grad + (row * p.tokens + first) * channels + column;
            for (int64_t token = 0; token < last - first; ++token, out += channels)
                std::memcpy(out, &grads[token * pitch], width * sizeof(T));
        }
    }
};

}  // namespace titans
