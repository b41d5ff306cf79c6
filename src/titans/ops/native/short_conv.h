// Short convolution, SiLU and norm of each head in one pass over memory, forward and backward; for ops/short_conv.
//
// The backward pass makes the gradients of the three tokens behind its block anew.
#pragma once

#include "blocks.h"
#include "problem.h"

namespace titans {

constexpr int KERNEL_SIZE = 4;
enum HeadNorm { NONE, L2NORM, CLIP_RMS };

// What Python hands over; all tensors but the incoming gradients are contiguous. Mirrored in ops/short_conv/native.py.
struct ShortConvProblem {
    int64_t batch, tokens, parts, heads, width, threads;
    const int64_t* norms;  // of each part
    double limit;          // root mean square of CLIP_RMS
    const void* x;         // [batch, tokens, channels]; channels = parts * heads * width
    const void* conv_weight;      // [KERNEL_SIZE, channels]
    const void* conv_state;      // [batch, KERNEL_SIZE - 1, channels]
    void* const* outputs;  // of each part [batch, heads, tokens, width]

    // Backward only.
    const Stream* grads;  // of each output; strides of row, head and token
    void *x_grad, *conv_state_grad;
    void* conv_weight_grad;  // of each block [batch * blocks, KERNEL_SIZE, channels]

    int64_t channels() const { return parts * heads * width; }
};

// How a head's activations s become its output, factor * s, and a gradient g of that one of s:
// factor * g - pull * (g . s) * s. NaN stays NaN.
template <class T> struct NormFactor {
    T factor = 1, pull = 0;

    NormFactor(int norm, T square, T width, T limit) {
        if (norm == L2NORM) {
            const T length = std::sqrt(square), least = T(1e-12);
            factor = 1 / (length < least ? least : length);
            pull = length >= least ? factor * factor * factor : 0;
        } else if (norm == CLIP_RMS) {
            const T power = square / width, most = limit * limit;
            factor = power < most ? 1 : limit / std::sqrt(power);
            pull = power >= most ? factor / square : 0;
        }
    }
};

template <class T> class ShortConv {
    const ShortConvProblem& p;
    const int64_t width, channels;
    const T* conv_weight;
    // Of one head in a block, rows of padded width, so that they lie in the first-level cache side by side:
    const int64_t pitch;
    std::vector<T> inputs;        // from three tokens before the block to three behind
    std::vector<T> bent;          // gradients before the activation, from the block's start to three tokens behind
    std::vector<T> grads;         // of the inputs
    std::vector<T> value, slope;  // of one token

    // A token's inputs; before the first one those of the conv_state.
    const T* input(int64_t row, int64_t token) const {
        if (token >= 0) return (const T*)p.x + (row * p.tokens + token) * channels;
        return (const T*)p.conv_state + (row * (KERNEL_SIZE - 1) + KERNEL_SIZE - 1 + token) * channels;
    }

    // Call f(j, count, convolved) for each vector of a head's channels, which start at `column`.
    template <class F> void convolve(const T* const (&x)[KERNEL_SIZE], int64_t column, F f) const {
        each_vector<T>(width, [&](int64_t j, auto count) {
            Vec<T> z = load(x[0] + j, count) * load(conv_weight + column + j, count);
            for (int i = 1; i < KERNEL_SIZE; ++i) z += load(x[i] + j, count) * load(conv_weight + i * channels + column + j, count);
            f(j, count, z);
        });
    }

    void write(int64_t row, int64_t token, int64_t part, int64_t head) const {
        T* out = (T*)p.outputs[part] + ((row * p.heads + head) * p.tokens + token) * width;
        const int64_t column = (part * p.heads + head) * width;
        const T* x[KERNEL_SIZE];
        for (int i = 0; i < KERNEL_SIZE; ++i) x[i] = input(row, token - KERNEL_SIZE + 1 + i) + column;
        Vec<T> square = {};
        convolve(x, column, [&](int64_t j, auto count, Vec<T> z) {
            const Vec<T> s = bend<T, SILU>(z).value;
            square += s * s;
            store(out + j, s, count);
        });
        if (p.norms[part] == NONE) return;
        const NormFactor<T> scale(p.norms[part], sum<T>(square), width, p.limit);
        each_vector<T>(width, [&](int64_t j, auto count) { store(out + j, load(out + j, count) * scale.factor, count); });
    }

    void gather(int64_t row, int64_t first, int64_t known, int64_t column) {
        T* to = inputs.data();
        for (int64_t token = first - KERNEL_SIZE + 1; token < known; ++token, to += pitch)
            std::memcpy(to, input(row, token) + column, width * sizeof(T));
    }

    // The gradient before the activation, of one token, the i-th of the block.
    void unbend(int64_t i, int norm, int64_t column, const T* grad) {
        const T* x[KERNEL_SIZE];
        for (int k = 0; k < KERNEL_SIZE; ++k) x[k] = &inputs[(i + k) * pitch];
        Vec<T> square = {}, along = {};
        convolve(x, column, [&](int64_t j, auto count, Vec<T> z) {
            const Bend<T> s = bend<T, SILU>(z);
            square += s.value * s.value;
            along += s.value * load(grad + j, count);
            store(&value[j], s.value);
            store(&slope[j], s.slope);
        });
        const NormFactor<T> scale(norm, sum<T>(square), width, p.limit);
        const T pull = scale.pull * sum<T>(along);
        each_vector<T>(width, [&](int64_t j, auto count) {
            store(&bent[i * pitch + j], (load(grad + j, count) * scale.factor - load(&value[j]) * pull) * load(&slope[j]));
        });
    }

    // The gradients of one vector of channels, from those before the activation of `tokens` tokens and three behind.
    template <class Count> void unconvolve(int64_t tokens, int64_t j, int64_t column, Count count, T* sums) {
        Vec<T> tap[KERNEL_SIZE], total[KERNEL_SIZE] = {}, x[KERNEL_SIZE], g[KERNEL_SIZE];  // tokens before and behind: a window each
        for (int i = 0; i < KERNEL_SIZE; ++i) tap[i] = load(conv_weight + i * channels + column + j, count);
        for (int i = 0; i < KERNEL_SIZE - 1; ++i) x[i + 1] = load(&inputs[i * pitch + j]), g[i + 1] = load(&bent[i * pitch + j]);
        for (int64_t token = 0; token < tokens; ++token) {
            for (int i = 0; i < KERNEL_SIZE - 1; ++i) x[i] = x[i + 1], g[i] = g[i + 1];
            x[KERNEL_SIZE - 1] = load(&inputs[(token + KERNEL_SIZE - 1) * pitch + j]);
            g[KERNEL_SIZE - 1] = load(&bent[(token + KERNEL_SIZE - 1) * pitch + j]);
            Vec<T> sum = {};
            for (int i = 0; i < KERNEL_SIZE; ++i) total[i] += x[i] * g[0], sum += tap[KERNEL_SIZE - 1 - i] * g[i];
            store(&grads[token * pitch + j], sum);
        }
        for (int i = 0; i < KERNEL_SIZE; ++i) store(sums + i * channels + column + j, total[i], count);
    }

    template <class Count> void reach_state(int64_t row, int64_t j, int64_t column, Count count) const {
        for (int t = 0; t < KERNEL_SIZE - 1; ++t) {
            Vec<T> sum = {};
            for (int i = 0; i <= t; ++i)
                sum += load(conv_weight + i * channels + column + j, count) * load(&bent[(t - i) * pitch + j]);
            store((T*)p.conv_state_grad + (row * (KERNEL_SIZE - 1) + t) * channels + column + j, sum, count);
        }
    }

public:
    explicit ShortConv(const ShortConvProblem& p)
        : p(p), width(p.width), channels(p.channels()), conv_weight((const T*)p.conv_weight), pitch(padded<T>(width)),
          inputs((BLOCK + 2 * KERNEL_SIZE - 2) * pitch), bent((BLOCK + KERNEL_SIZE - 1) * pitch), grads(BLOCK * pitch), value(pitch),
          slope(pitch) {}

    void forward(int64_t row, int64_t first, int64_t last) const {
        for (int64_t token = first; token < last; ++token)
            for (int64_t i = 0; i < p.parts * p.heads; ++i) write(row, token, i / p.heads, i % p.heads);
    }

    void backward(int64_t row, int64_t first, int64_t last) {
        T* sums = (T*)p.conv_weight_grad + (row * blocks(p.tokens) + first / BLOCK) * KERNEL_SIZE * channels;
        const int64_t known = std::min<int64_t>(last + KERNEL_SIZE - 1, p.tokens);
        // Each head's channels are short pieces far apart, which no processor foresees: bring in whole tokens.
        for (const T* x = input(row, first); x < input(row, known - 1) + channels; x += 64 / sizeof(T)) __builtin_prefetch(x);
        for (int64_t i = 0; i < p.parts * p.heads; ++i) {
            const int64_t part = i / p.heads, column = i * width;
            const Stream& in = p.grads[part];
            const T* grad = (const T*)in.data + row * in.strides[0] + i % p.heads * in.strides[1];
            gather(row, first, known, column);
            for (int64_t token = first; token < known; ++token)
                unbend(token - first, p.norms[part], column, grad + token * in.strides[2]);
            std::fill(bent.begin() + (known - first) * pitch, bent.end(), T(0));
            each_vector<T>(width, [&](int64_t j, auto count) {
                unconvolve(last - first, j, column, count, sums);
                if (first == 0) reach_state(row, j, column, count);
            });
            T* out = (T*)p.x_grad + (row * p.tokens + first) * channels + column;
            for (int64_t token = 0; token < last - first; ++token, out += channels)
                std::memcpy(out, &grads[token * pitch], width * sizeof(T));
        }
    }
};

}  // namespace titans
