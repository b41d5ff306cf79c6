// RMS norm of each head and SiLU gate in one pass; for ops/gated_rms_norm.py.
#pragma once

#include "blocks.h"
#include "problem.h"

namespace titans {

// What Python hands over; all tensors are contiguous. Mirrored in ops/gated_rms_norm.py.
struct GatedRmsNormProblem {
    int64_t batch, tokens, heads, width, threads;
    double eps;
    const void* x;       // [batch, heads, tokens, width]
    const void* weight;  // [width]
    const void* gate;    // [batch, tokens, heads * width], before its SiLU
    void* output;        // as gate

    // Backward only.
    const void* grad;  // of the output
    void *x_grad, *gate_grad;
    void* weight_grad;  // of each block [batch * blocks, width]
};

template <class T> class GatedRmsNorm {
    const GatedRmsNormProblem& p;
    const int64_t width;
    const T* weight;

    int64_t by_head(int64_t row, int64_t head, int64_t token) const {
        return ((row * p.heads + head) * p.tokens + token) * width;
    }
    int64_t by_token(int64_t row, int64_t head, int64_t token) const {
        return ((row * p.tokens + token) * p.heads + head) * width;
    }
    T scale(const T* y) const {
        Vec<T> square = {};
        each_vector<T>(width, [&](int64_t j, auto count) { square += load(y + j, count) * load(y + j, count); });
        return 1 / std::sqrt(sum<T>(square) / width + T(p.eps));
    }

    void write(const T* y, const T* gate, T* out) const {
        const T scale = this->scale(y);
        each_vector<T>(width, [&](int64_t j, auto count) {
            const Vec<T> unit = load(y + j, count) * scale;
            store(out + j, unit * load(weight + j, count) * bend<T, SILU>(load(gate + j, count)).value, count);
        });
    }

    void pull(const T* y, const T* gate, const T* grad, T* y_grad, T* gate_grad, T* weight_grad) const {
        const T scale = this->scale(y);
        Vec<T> along = {};
        each_vector<T>(width, [&](int64_t j, auto count) {
            const Vec<T> unit = load(y + j, count) * scale, w = load(weight + j, count), g = load(grad + j, count);
            const Bend<T> open = bend<T, SILU>(load(gate + j, count));
            const Vec<T> at_norm = g * open.value;
            store(gate_grad + j, g * unit * w * open.slope, count);
            store(weight_grad + j, load(weight_grad + j, count) + at_norm * unit, count);
            store(y_grad + j, at_norm * w, count);  // for now: of the unit
            along += at_norm * w * unit;
        });
        const T mean = sum<T>(along) / width;
        each_vector<T>(width, [&](int64_t j, auto count) {
            store(y_grad + j, (load(y_grad + j, count) - load(y + j, count) * (scale * mean)) * scale, count);
        });
    }

public:
    explicit GatedRmsNorm(const GatedRmsNormProblem& p) : p(p), width(p.width), weight((const T*)p.weight) {}

    void forward(int64_t row, int64_t first, int64_t last) const {
        for (int64_t token = first; token < last; ++token)
            for (int64_t head = 0; head < p.heads; ++head) {
                const int64_t here = by_head(row, head, token), there = by_token(row, head, token);
                write((const T*)p.x + here, (const T*)p.gate + there, (T*)p.output + there);
            }
    }

    void backward(int64_t row, int64_t first, int64_t last) const {
        T* weight_grad = (T*)p.weight_grad + (row * blocks(p.tokens) + first / BLOCK) * width;
        std::fill(weight_grad, weight_grad + width, T(0));
        for (int64_t token = first; token < last; ++token)
            for (int64_t head = 0; head < p.heads; ++head) {
                const int64_t here = by_head(row, head, token), there = by_token(row, head, token);
                pull((const T*)p.x + here, (const T*)p.gate + there, (const T*)p.grad + there, (T*)p.x_grad + here,
                     (T*)p.gate_grad + there, weight_grad);
            }
    }
};

}  // namespace titans
