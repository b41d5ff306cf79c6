// Between two layers: a product's activation and, with the feature norm, centred rows of length 1.
#pragma once

#include "standardise.h"

namespace titans {

// Call f(row, column, bent) for each vector of a matrix.
template <class T, class F> inline void each_bend(const Problem& p, const Matrix<T>& z, F f) {
    with_activation(p.activation, [&](auto kind) {
        each(z, [&](int t, int j) { f(t, j, bend<T, decltype(kind)::value>(load(z[t] + j))); });
    });
}

// With the feature norm: bring each row to length 1, in place, and keep the factors where asked to.
template <class T> inline void normalise(const Problem& p, const Matrix<T>& x, T* factors = nullptr) {
    for (int t = 0; p.feature_norm && t < x.rows; ++t) {
        const T factor = standardise(x[t], x.columns, T(1), x[t]);
        if (factors) factors[t] = factor;
    }
}

// Inputs of a layer made of the product of the one below.
template <class T> struct Features {
    Matrix<T> values, slopes;  // inputs, and the activation's slopes at the products [tokens, width]
    T* factors;                // that brought them to length 1 [tokens]

    Features(Arena<T>& arena, int tokens, int width)
        : values(arena.matrix(tokens, width)), slopes(arena.matrix(tokens, width)), factors(arena.row(tokens)) {}

    void fetch(const Problem& p, const Matrix<T>& z) const {
        each_bend(p, z, [&](int t, int j, const Bend<T>& bent) {
            store(values[t] + j, bent.value), store(slopes[t] + j, bent.slope);
        });
        normalise(p, values, factors);
    }
    void fetch(const Problem& p, const Matrix<T>& z, const Matrix<T>& curves) const {
        each_bend(p, z, [&](int t, int j, const Bend<T>& bent) {
            store(values[t] + j, bent.value), store(slopes[t] + j, bent.slope), store(curves[t] + j, bent.curve);
        });
        normalise(p, values, factors);
    }
    // Carry a gradient back to the activation; returns where it is: in `out`, or `grad` itself without a norm.
    const Matrix<T>& before_norm(const Problem& p, const Matrix<T>& grad, const Matrix<T>& out) const {
        if (!p.feature_norm) return grad;
        for (int t = 0; t < grad.rows; ++t)
            unstandardise(grad[t], values[t], factors[t], values.columns, T(1), out[t]);
        return out;
    }
    // Carry a gradient back to the product; `out` may be `grad`.
    void back(const Problem& p, const Matrix<T>& grad, const Matrix<T>& out) const {
        multiply(before_norm(p, grad, out), slopes, out);
    }
    // Transpose `before_norm` of `pull`: `grad` is its result's gradient, and then that of `pull`. What the values get
    // is added to `input_grad`; `by_factor` is left for `unstandardise`.
    void twice_back(const Matrix<T>& pull, const Matrix<T>& grad, const Matrix<T>& input_grad, T* by_factor) const {
        const int width = values.columns;
        for (int t = 0; t < grad.rows; ++t) {
            const T *p = pull[t], *f = values[t], factor = factors[t];
            T *g = grad[t], *to = input_grad[t];
            const T along_pull = dot(p, f, width), along_grad = dot(g, f, width);
            const T centred = dot(g, p, width) - mean(p, width) * mean(g, width) * width;
            by_factor[t] = factor * (centred - along_pull * along_grad);
            add(g, -factor * along_pull, width, to);
            add(p, -factor * along_grad, width, to);
            unstandardise(g, f, factor, width, T(1), g);
        }
    }
};

}  // namespace titans
