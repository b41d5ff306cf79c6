// What the two passes share of one chunk: its coefficients, the norm, the inner gradient, and what it writes.
#pragma once

#include <limits>

#include "problem.h"

namespace titans {

constexpr double NORM_EPS = 1e-6;  // as in network.py

// Recurrence of the coefficients of gradients (recurrence.py), from token to token: no division and no logarithm, so
// gates of exactly 0 and 1 need no care. Fills `momentum` [tokens, tokens], how much of gradient j is in the surprise at
// token t (a pitch of 0 keeps the last row only), and `gradient`, how much of it is in the weights; both times `steps`.
template <class T>
inline void reach(const T* steps, const T* decay, const T* eta, const Matrix<T>& momentum, const Matrix<T>& gradient) {
    for (int t = 0; t < gradient.rows; ++t) {
        for (int j = 0; j < gradient.columns; j += LANES<T>) {
            const Vec<T> m = t ? load(momentum[t - 1] + j) * eta[t] : Vec<T>{};
            store(momentum[t] + j, m);
            store(gradient[t] + j, t ? load(gradient[t - 1] + j) * decay[t] + m : m);
        }
        momentum[t][t] = steps[t], gradient[t][t] = steps[t];
    }
}

// The layer norm on the last product, without scale; rows of whole vectors.
template <class T> struct Norm {
    int width;
    T* scale;     // [width]; null: no norm
    T* mask;      // 1 in the first `width` elements
    T steepest;   // the largest square of the scale

    Norm(const Problem& p, Arena<T>& arena)
        : width(p.widths[p.layers]), scale(arena.row(width)), mask(arena.row(width)), steepest(1) {}

    void fetch(const Problem& p, int head) {
        std::fill(mask, mask + padded<T>(width), T(0));
        std::fill(mask, mask + width, T(1));
        if (!p.scale) {
            scale = nullptr;
            return;
        }
        std::fill(scale, scale + padded<T>(width), T(0));
        std::memcpy(scale, (const T*)p.scale + head % p.heads * width, width * sizeof(T));
        steepest = 0;
        for (int j = 0; j < width; ++j) steepest = std::max(steepest, scale[j] * scale[j]);
    }
    // Returns the reciprocal standard deviation.
    T standardise(const T* z, T* unit) const {
        const T mean = dot(z, mask, width) / width;
        for (int j = 0; j < width; j += LANES<T>) store(unit + j, (load(z + j) - mean) * load(mask + j));
        const T rstd = 1 / std::sqrt(dot(unit, unit, width) / width + T(NORM_EPS));
        for (int j = 0; j < width; j += LANES<T>) store(unit + j, load(unit + j) * rstd);
        return rstd;
    }
    // Carry a gradient back through `standardise`; `out` may be `grad`.
    void unstandardise(const T* grad, const T* unit, T rstd, T* out) const {
        const T mean = dot(grad, mask, width) / width, along = dot(grad, unit, width) / width;
        for (int j = 0; j < width; j += LANES<T>)
            store(out + j, (load(grad + j) - mean - load(unit + j) * along) * load(mask + j) * rstd);
    }
    // Gradient of the loss at the normalised (or plain) last product, where the memory's output is `unit`.
    void aim(const Problem& p, const T* key, const T* value, const T* unit, T* out) const {
        for (int j = 0; j < width; j += LANES<T>) {
            Vec<T> error = -load(value + j);
            if (p.residual) error += load(key + j);
            if (scale) error = (error + load(unit + j) * load(scale + j)) * load(scale + j);
            else error += load(unit + j);
            store(out + j, error * T(2));
        }
    }
};

// A chunk of one head: its tokens, and the inner gradient of its keys, an outer product of `inputs` and `deltas`.
template <class T> struct Chunk {
    const Problem& p;
    const int tokens, last;
    Matrix<T> q, v;
    Matrices<T> inputs, deltas;  // [tokens, in], [tokens, out]
    Matrices<T> slopes;          // of the activation at each product but the last [tokens, out]
    const T *theta, *decay, *eta;
    T *weights, *surprise;  // A and B: how much of the state at the chunk's start is in the weights [tokens]
    T past;                 // H: and of the surprise in the surprise at the end
    T *steps, *momentum;    // theta, and D, shortened where steps are limited [tokens]
    Matrix<T> gradient;     // C, likewise [tokens, tokens]
    Norm<T> norm;
    Buffer<T> spread, turned;

    Chunk(const Problem& p, Arena<T>& arena)
        : p(p), tokens(p.tokens), last(p.layers - 1), q(arena.matrix(tokens, p.widths[0])),
          v(arena.matrix(tokens, p.widths[p.layers])), weights(arena.row(tokens)), surprise(arena.row(tokens)),
          steps(arena.row(tokens)), momentum(arena.row(tokens)), gradient(arena.matrix(tokens, tokens)), norm(p, arena),
          spread(arena, tokens, p.widest()), turned(arena, p.widest(), std::max(tokens, p.widest())) {
        for (int i = 0; i < p.layers; ++i) {
            inputs.push_back(arena.matrix(tokens, p.widths[i]));
            deltas.push_back(arena.matrix(tokens, p.widths[i + 1]));
            if (i < last) slopes.push_back(arena.matrix(tokens, p.widths[i + 1]));
        }
    }

    void fetch(int head, int chunk) {
        titans::fetch(p, p.q, head, chunk, q);
        titans::fetch(p, p.k, head, chunk, inputs[0]);
        titans::fetch(p, p.v, head, chunk, v);
        const size_t at = (head * p.chunks + chunk) * tokens;
        theta = (const T*)p.theta + at, decay = (const T*)p.decay + at, eta = (const T*)p.eta + at;
    }

    void coefficients(const T* limits) {
        T a = 1, b = 0, h = 1;
        std::fill(steps, steps + padded<T>(tokens), T(0));
        for (int t = 0; t < tokens; ++t) {
            a *= decay[t], h *= eta[t], b = decay[t] * b + h;
            weights[t] = a, surprise[t] = b;
            steps[t] = p.limited ? theta[t] * limits[t] : theta[t];
        }
        past = h;
        reach(steps, decay, eta, Matrix<T>{momentum, tokens, tokens, 0}, gradient);
    }

    const T* reached() const { return gradient[tokens - 1]; }

    Matrix<T> transposed(const Matrix<T>& x) const {
        const Matrix<T> out = turned.as(x.columns, x.rows);
        transpose(x, out);
        return out;
    }

    Matrix<T> scaled(const Matrix<T>& x, const T* factors) const {
        const Matrix<T> out = spread.as(x.rows, x.columns);
        scale_rows(x, factors, out);
        return out;
    }

    // The state after the chunk, from that before it; both may be one.
    void write(const State<T>& before, const State<T>& after) const {
        const T a = weights[tokens - 1], b = surprise[tokens - 1], h = past;
        for (int i = 0; i < p.layers; ++i) {
            const Matrix<T>&w = before.weights[i], &s = before.surprise[i];
            product<WHOLE, true>(scaled(inputs[i], reached()), deltas[i], [&](int r, int j, Vec<T> v) {
                store(after.weights[i][r] + j, load(w[r] + j) * a + load(s[r] + j) * b - v);
            });
            product<WHOLE, true>(scaled(inputs[i], momentum), deltas[i], [&](int r, int j, Vec<T> v) {
                store(after.surprise[i][r] + j, load(s[r] + j) * h - v);
            });
        }
    }
};

}  // namespace titans
