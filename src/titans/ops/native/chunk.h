// What the two passes share of one chunk: its coefficients, the norm, the inner gradient, and what it writes.
#pragma once

#include <limits>

#include "features.h"
#include "norm.h"

namespace titans {

// Recurrence of the coefficients of gradients (recurrence.py), from token to token: no division and no logarithm, so
// gates of exactly 0 and 1 need no care. Fills `momentum` [tokens, tokens], how much of gradient j is in the surprise at
// token t (a pitch of 0 keeps the last row only), and `gradient`, how much of it is in the weights; both times `steps`.
template <class T>
inline void carry_steps(const T* steps, const T* decay, const T* eta, const Matrix<T>& momentum,
                        const Matrix<T>& gradient) {
    for (int t = 0; t < gradient.rows; ++t) {
        for (int j = 0; j < gradient.columns; j += LANES<T>) {
            const Vec<T> m = t ? load(momentum[t - 1] + j) * eta[t] : Vec<T>{};
            store(momentum[t] + j, m);
            store(gradient[t] + j, t ? load(gradient[t - 1] + j) * decay[t] + m : m);
        }
        momentum[t][t] = steps[t], gradient[t][t] = steps[t];
    }
}

// How much of the state at the chunk's start, and of each gradient, has reached the weights by each token.
template <class T> struct Reach {
    T *weights, *surprise;  // A and B [tokens]
    Matrix<T> gradient;     // C [tokens, tokens]

    Reach(Arena<T>& arena, int tokens) : weights(arena.row(tokens + 1)), surprise(arena.row(tokens + 1)) {
        gradient = arena.matrix(tokens + 1, tokens);
        *this = shifted(1);
        gradient.rows = tokens;
    }
    // Before each token's own write: there is a row ahead of the first token's.
    Reach before() const { return shifted(-1); }
    // Nothing was written ahead of the first token.
    void start() const {
        weights[-1] = 1, surprise[-1] = 0;
        std::fill(gradient[-1], gradient[-1] + gradient.width(), T(0));
    }

  private:
    Reach shifted(int tokens) const {
        Reach other = *this;
        other.weights += tokens, other.surprise += tokens, other.gradient.data += tokens * gradient.ld;
        return other;
    }
};

// A chunk of one head: its tokens, and the inner gradient of its keys, an outer product of `inputs` and `deltas`.
template <class T> struct Chunk {
    const Problem& p;
    const int tokens, last;
    Matrix<T> q, v;
    Matrices<T> inputs, deltas;  // [tokens, in], [tokens, out]
    std::vector<Features<T>> features;  // what the inputs of all layers but the first are made from
    const T *theta, *decay, *eta;
    Reach<T> reach;       // A, B and C; C is shortened where steps are limited
    T past;               // H: how much of the surprise at the chunk's start is in the surprise at the end
    T *steps, *momentum;  // theta, and D, likewise shortened [tokens]
    Norm<T> norm;
    Buffer<T> spread, turned;

    Chunk(const Problem& p, Arena<T>& arena)
        : p(p), tokens(p.tokens), last(p.layers - 1), q(arena.matrix(tokens, p.widths[0])),
          v(arena.matrix(tokens, p.widths[p.layers])), reach(arena, tokens), steps(arena.row(tokens)),
          momentum(arena.row(tokens)), norm(p, arena), spread(arena, tokens, p.widest()),
          turned(arena, p.widest(), std::max(tokens, p.widest())) {
        inputs.push_back(arena.matrix(tokens, p.widths[0]));
        for (int i = 0; i < p.layers; ++i) {
            deltas.push_back(arena.matrix(tokens, p.widths[i + 1]));
            if (i == last) break;
            features.emplace_back(arena, tokens, p.widths[i + 1]);
            inputs.push_back(features[i].values);
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
            reach.weights[t] = a, reach.surprise[t] = b;
            steps[t] = p.limited ? theta[t] * limits[t] : theta[t];
        }
        past = h;
        reach.start();
        carry_steps(steps, decay, eta, Matrix<T>{momentum, tokens, tokens, 0}, reach.gradient);
    }

    const T* reached() const { return reach.gradient[tokens - 1]; }

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
        const T a = reach.weights[tokens - 1], b = reach.surprise[tokens - 1], h = past;
        for (int i = 0; i < p.layers; ++i) {
            const Matrix<T>&w = before.weights[i], &s = before.surprise[i];
            const T rate = p.rate(i);
            product<WHOLE, true>(scaled(inputs[i], reached()), deltas[i], [&](int r, int j, Vec<T> v) {
                store(after.weights[i][r] + j, load(w[r] + j) * a + load(s[r] + j) * b - v * rate);
            });
            product<WHOLE, true>(scaled(inputs[i], momentum), deltas[i], [&](int r, int j, Vec<T> v) {
                store(after.surprise[i][r] + j, load(s[r] + j) * h - v * rate);
            });
        }
    }
};

}  // namespace titans
