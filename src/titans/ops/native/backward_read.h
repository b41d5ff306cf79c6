// The backward pass of a chunk's reads, and of what the token rule's errors read.
#pragma once

#include "backward.h"

namespace titans {

// Transpose `Forward::read`.
template <class T> void Backward<T>::read(int head, int c, const State<T>& state, const Trace<T>& trace) {
    fetch(p, p.y_grad, head, c, y_grad);
    for (int i = 0; i < last; ++i) query_features[i].fetch(p, trace.reads[i]);
    const Matrix<T>& z_grad = read_grads[last];
    for (int t = 0; t < tokens; ++t) {
        if (!chunk.norm.scale) {
            std::memcpy(z_grad[t], y_grad[t], z_grad.width() * sizeof(T));
            continue;
        }
        const T rstd = chunk.norm.standardise(trace.reads[last][t], unit);
        for (int j = 0; j < z_grad.columns; j += LANES<T>) {
            const Vec<T> g = load(y_grad[t] + j);
            store(scale_grad + j, load(scale_grad + j) + g * load(unit + j));
            store(z_grad[t] + j, g * load(chunk.norm.scale + j));
        }
        chunk.norm.unstandardise(z_grad[t], unit, rstd, z_grad[t]);
    }
    for (int i = last; i >= 0; --i) read_layer(i, state);
    const Matrix<T> q_grad = by_weights.as(tokens, p.widths[0]);
    if (p.residual) each(q_grad, [&](int t, int j) { store(q_grad[t] + j, load(q_grad[t] + j) + load(y_grad[t] + j)); });
    deliver(p, q_grad, p.q_grad, head, c);
}

template <class T> void Backward<T>::read_layer(int i, const State<T>& state) {
    const Matrix<T>&x = queries[i], &z_grad = read_grads[i];
    carry_surprise(i, state);
    overlap(x, chunk.inputs[i], chunk.reach);
    product<FROM_LOWER_T, true>(back, z_grad, Into<T>{delta_grads[i], T(-p.rate(i)), 1});
    const Matrix<T> x_grad = mixed_back(i, x, z_grad, state, chunk.reach, reach_grad, i == last);
    if (i) query_features[i - 1].back(p, x_grad, read_grads[i - 1]);
}

// Products of what is read with what was written: `gram`, and in `back` times how much of it has reached the weights.
template <class T> void Backward<T>::overlap(const Matrix<T>& x, const Matrix<T>& a, const Reach<T>& reach) {
    product<LOWER, false>(x, chunk.transposed(a), [&](int t, int j, Vec<T> v) {
        store(gram[t] + j, v);
        store(back[t] + j, v * load(reach.gradient[t] + j));
    });
}

// Carry the gradient of a layer's products back to its inputs, which are returned, to those written, and to `grad`, the
// coefficients, whose part for the gradients is set, not added to, at the `first` layer. Needs `overlap`.
template <class T>
Matrix<T> Backward<T>::mixed_back(int i, const Matrix<T>& x, const Matrix<T>& z_grad, const State<T>& state,
                                  const Reach<T>& reach, const Reach<T>& grad, bool first) {
    const Matrix<T>&a = chunk.inputs[i], &delta = chunk.deltas[i];
    const Matrix<T> w = by_weights.as(tokens, x.columns), s = by_surprise.as(tokens, x.columns);
    transpose(state.weights[i], turned[i]);
    product<WHOLE, false>(z_grad, turned[i], Into<T>{w});
    product<WHOLE, false>(z_grad, chunk.transposed(state.surprise[i]), Into<T>{s});
    for (int t = 0; t < tokens; ++t) {
        const T a = reach.weights[t], b = reach.surprise[t];
        grad.weights[t] += dot(x[t], w[t], x.columns);
        grad.surprise[t] += dot(x[t], s[t], x.columns);
        for (int j = 0; j < x.columns; j += LANES<T>) store(w[t] + j, load(w[t] + j) * a + load(s[t] + j) * b);
    }
    const T rate = p.rate(i);
    product<LOWER, false>(z_grad, chunk.transposed(delta), [&](int t, int j, Vec<T> v) {
        T* total = grad.gradient[t] + j;
        v *= rate;
        const Vec<T> here = -v * load(gram[t] + j);
        store(total, first && t < tokens - 1 ? here : load(total) + here);
        store(mixed[t] + j, v * load(reach.gradient[t] + j));
    });
    product<FROM_LOWER_T, true>(mixed, x, Into<T>{input_grads[i], -1, 1});
    product<FROM_LOWER, false>(mixed, a, Into<T>{w, -1, 1});
    return w;
}

// Carry the gradient of the surprise back over the chunk, that of the weights being still the one after it.
template <class T> void Backward<T>::carry_surprise(int i, const State<T>& state) {
    const Matrix<T>&w = state.weights[i], &s = state.surprise[i];
    const Matrix<T>&w_grad = state_grad.weights[i], &s_grad = state_grad.surprise[i];
    const T b = chunk.reach.surprise[tokens - 1], h = chunk.past;
    Vec<T> by_a = {}, by_b = {}, by_h = {};
    product<WHOLE, true>(chunk.scaled(queries[i], chunk.reach.surprise), read_grads[i], [&](int r, int j, Vec<T> v) {
        const Vec<T> old = load(s[r] + j), after = load(w_grad[r] + j), past = load(s_grad[r] + j);
        by_a += load(w[r] + j) * after, by_b += old * after, by_h += old * past;
        store(s_grad[r] + j, past * h + after * b + v);
    });
    reach_grad.weights[tokens - 1] += sum<T>(by_a), reach_grad.surprise[tokens - 1] += sum<T>(by_b);
    past_grad += sum<T>(by_h);
}

}  // namespace titans
