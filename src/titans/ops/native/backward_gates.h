// The backward pass of a chunk's gates: from the gradients of its coefficients to theirs.
#pragma once

#include "backward.h"

namespace titans {

template <class T> void Backward<T>::gates(int head, int c, const Trace<T>& trace) {
    const size_t at = (head * p.chunks + c) * tokens;
    steps(trace, (T*)p.theta_grad + at);
    coefficients((T*)p.decay_grad + at, (T*)p.eta_grad + at);
}

// Gradients of theta and of the limits; transposes `Forward::sizes`.
template <class T> void Backward<T>::steps(const Trace<T>& trace, T* theta_grad) {
    carry_steps<T>(ones, chunk.decay, chunk.eta, mixed, back);  // without the steps, which may be 0
    for (int j = 0; j < padded<T>(tokens); j += LANES<T>)
        store(step_grad + j, load(momentum_grad + j) * load(mixed[tokens - 1] + j));
    for (int t = 0; t < tokens; ++t) {
        T* here = reach_grad.gradient[t];
        std::fill(here + t + 1, here + padded<T>(tokens), T(0));
        for (int j = 0; j <= t; j += LANES<T>)
            store(step_grad + j, load(step_grad + j) + load(here + j) * load(back[t] + j));
    }
    for (int t = 0; t < tokens; ++t) {
        rstds[t] = chunk.norm.scale ? chunk.norm.standardise(trace.products[last][t], units[t]) : 1;
        theta_grad[t] = p.limited ? step_grad[t] * trace.limits[t] : step_grad[t];
        if (p.limited) limited(t, step_grad[t] * chunk.theta[t], trace.limits[t]);
    }
}

template <class T> void Backward<T>::limited(int t, T limit_grad, T limit) {
    T sizes = 0, error = 0;
    for (int i = 0; i <= last; ++i) {
        const T *a = chunk.inputs[i][t], *d = chunk.deltas[i][t];
        error = dot(d, d, p.widths[i + 1]);
        sizes += dot(a, a, p.widths[i]) * error;
    }
    error = std::max(error, std::numeric_limits<T>::min());
    const T curvature = sizes / error, slope = chunk.norm.steepest * rstds[t] * rstds[t];
    if (curvature * slope < 1) return;
    const T grad = -limit_grad * limit * limit, factor = 2 * slope * grad / error;
    slope_grads[t] = grad * curvature;
    for (int i = 0; i <= last; ++i) {
        const T *a = chunk.inputs[i][t], *d = chunk.deltas[i][t];
        const T along_a = factor * dot(d, d, p.widths[i + 1]);
        const T along_d = factor * (dot(a, a, p.widths[i]) - (i == last ? curvature : 0));
        add(a, along_a, p.widths[i], input_grads[i][t]);
        add(d, along_d, p.widths[i + 1], delta_grads[i][t]);
    }
}

// Transpose `Chunk::coefficients`; theta is done.
template <class T> void Backward<T>::coefficients(T* decay_grad, T* eta_grad) {
    T past = 1, a_grad = 0, b_grad = 0, h_grad = past_grad;
    for (int t = 0; t < tokens; ++t) pasts[t] = past, past *= chunk.eta[t];
    for (int j = 0; j < padded<T>(tokens); j += LANES<T>) {
        store(gradient_row + j, Vec<T>{});
        store(momentum_row + j, load(momentum_grad + j) * load(chunk.steps + j));
    }
    for (int t = tokens; t-- > 0;) {
        const T decay = chunk.decay[t], eta = chunk.eta[t];
        a_grad += reach_grad.weights[t], b_grad += reach_grad.surprise[t], h_grad += b_grad;
        Vec<T> by_decay = {}, by_eta = {};
        for (int j = 0; j < t; j += LANES<T>) {
            const Vec<T> g = load(gradient_row + j) + load(reach_grad.gradient[t] + j) * load(chunk.steps + j);
            const Vec<T> m = load(momentum_row + j) + g;
            by_decay += g * load(back[t - 1] + j), by_eta += m * load(mixed[t - 1] + j);
            store(gradient_row + j, g * decay), store(momentum_row + j, m * eta);
        }
        decay_grad[t] = sum<T>(by_decay) + b_grad * (t ? chunk.reach.surprise[t - 1] : 0);
        decay_grad[t] += a_grad * (t ? chunk.reach.weights[t - 1] : 1);
        eta_grad[t] = sum<T>(by_eta) + h_grad * pasts[t];
        a_grad *= decay, b_grad *= decay, h_grad *= eta;
    }
}

}  // namespace titans
