// The backward pass of the errors of a chunk's keys: the end of `Backward::walk`, and of `Backward::run`.
#pragma once

#include "backward.h"

namespace titans {

// Transpose `Forward::errors`; leaves the gradients of keys in input_grads[0], of values in chunk.v. Carries the
// gradient of the weights back over the chunk. The errors are of `w`, which is `apart` from the state in a first chunk.
template <class T>
void Backward<T>::errors(const Matrices<T>& w, const State<T>& state, const Trace<T>& trace, bool apart) {
    for (int i = 0; i < last; ++i) {
        const Matrix<T>&grad = delta_grads[i], &pull_grad = pull_grads[i];
        const Features<T>& features = chunk.features[i];
        multiply(grad, features.slopes, pull_grad);
        multiply(grad, curves[i], grad);
        if (p.feature_norm) features.twice_back(trace.pulls[i], pull_grad, input_grads[i + 1], factor_grads[i]);
        product<WHOLE, false>(pull_grad, w[i + 1], Into<T>{delta_grads[i + 1], 1, 1});
    }
    if (p.online) solved(state);
    else
        for (int t = 0; t < tokens; ++t) pulled(t, delta_grads[last][t]);
    for (int i = last; i >= 0; --i) {
        const bool online = p.online && i == last;  // with the state's weights, not the anchor's
        const Matrix<T>&a = chunk.inputs[i], &z_grad = delta_grads[i];
        const Matrix<T> ahead = by_surprise.as(tokens, a.columns);
        if (online) scale_rows(a, chunk.reach.before().weights, ahead);
        const Factors<T> read{chunk.scaled(queries[i], chunk.reach.weights), read_grads[i]};
        const Factors<T> key{online ? ahead : a, z_grad};
        const Factors<T> error = i ? Factors<T>{pull_grads[i - 1], chunk.deltas[i]} : Factors<T>{};
        const Into<T> weights{state_grad.weights[i], 1, chunk.reach.weights[tokens - 1]};
        const Into<T> anchor{anchor_grad[i], 1, 1};
        if (!apart) {
            product<WHOLE, true, T>({read, key, error}, weights);
        } else {
            if (online) product<WHOLE, true, T>({read, key}, weights);
            else product<WHOLE, true, T>({read}, weights), product<WHOLE, true, T>({key}, anchor);
            if (i) product<WHOLE, true, T>({error}, anchor);
        }
        if (online) {
            const Matrix<T> scaled = chunk.scaled(a, chunk.reach.before().surprise);
            product<WHOLE, true>(scaled, z_grad, Into<T>{state_grad.surprise[i], 1, 1});
        } else {
            if (apart) transpose(w[i], turned[i]);
            product<WHOLE, false>(z_grad, turned[i], Into<T>{input_grads[i], 1, 1});
        }
        if (i) carried_features(i);
    }
}

// Carry the gradient of a layer's inputs back to the product below.
template <class T> void Backward<T>::carried_features(int i) {
    const Matrix<T>&grad = input_grads[i], &z_grad = delta_grads[i - 1];
    const Features<T>& features = chunk.features[i - 1];
    if (p.feature_norm)
        for (int t = 0; t < tokens; ++t)
            unstandardise(grad[t], features.values[t], features.factors[t], grad.columns, T(1), grad[t],
                          factor_grads[i - 1][t]);
    multiply_add(grad, features.slopes, z_grad);
}

// Transpose `Forward::online`, given the gradient of its errors and leaving that of what they solve for in its place.
template <class T> void Backward<T>::solved(const State<T>& state) {
    const Matrix<T>&f = chunk.inputs[last], &grad = delta_grads[last], &f_grad = input_grads[last];
    const Reach<T> reach = chunk.reach.before();
    overlap(f, f, reach);
    solve_transposed(back, grad);
    const Matrix<T> by_read = mixed_back(last, f, grad, state, reach, reach_grad.before(), false);
    each(f, [&](int t, int j) { store(f_grad[t] + j, load(f_grad[t] + j) + load(by_read[t] + j)); });
    each(grad, [&](int t, int j) { store(chunk.v[t] + j, -load(grad[t] + j)); });
    if (!p.residual) return;
    each(grad, [&](int t, int j) { store(input_grads[0][t] + j, load(input_grads[0][t] + j) + load(grad[t] + j)); });
}

// Carry the gradient of the last error back to the last product, in place, and to keys, values and scale.
template <class T> void Backward<T>::pulled(int t, T* grad) {
    const Norm<T>& norm = chunk.norm;
    const int width = padded<T>(norm.width);
    T *value = chunk.v[t], *key_grad = input_grads[0][t];
    if (!norm.scale) {
        for (int j = 0; j < width; ++j) grad[j] *= 2, value[j] = -grad[j];
        if (p.residual) add(grad, T(1), width, key_grad);
        return;
    }
    const T *key = chunk.inputs[0][t], *unit = units[t], rstd = rstds[t];
    const T slope_grad = dot(grad, chunk.deltas[last][t], width) / rstd + 2 * slope_grads[t] * rstd * norm.steepest;
    const T tilt = dot(grad, unit, width) / norm.width;
    norm.aim(p, key, value, unit, ahead);
    const T radial = dot(ahead, unit, width) / norm.width;
    norm.unstandardise(grad, unit, rstd, aims);
    for (int j = 0; j < width; j += LANES<T>) {
        const Vec<T> scale = load(norm.scale + j), u = load(unit + j), by_aim = load(aims + j) * T(2);
        Vec<T> error = u * scale * T(2) - load(value + j);
        if (p.residual) error += load(key + j);
        store(scale_grad + j, load(scale_grad + j) + by_aim * error);
        const Vec<T> by_error = by_aim * scale;
        store(value + j, -by_error);
        if (p.residual) store(key_grad + j, load(key_grad + j) + by_error);
        store(grad + j, by_error * scale - (load(grad + j) * radial + load(ahead + j) * tilt) * rstd);
    }
    norm.unstandardise(grad, unit, rstd, grad);
    add(unit, -slope_grad * rstd * rstd / norm.width, width, grad);
    steepest_grad += slope_grads[t] * rstd * rstd;
}

// The largest square of the scale, which limits steps, is shared by all elements that reach it.
template <class T> void Backward<T>::share_steepest() const {
    const Norm<T>& norm = chunk.norm;
    int count = 0;
    for (int j = 0; j < norm.width; ++j) count += norm.scale[j] * norm.scale[j] == norm.steepest;
    for (int j = 0; j < norm.width; ++j)
        if (norm.scale[j] * norm.scale[j] == norm.steepest) scale_grad[j] += 2 * norm.scale[j] * steepest_grad / count;
}

}  // namespace titans
