// The backward pass of the errors of a chunk's keys: the end of `Backward::walk`, and of `Backward::run`.
#pragma once

#include "backward.h"

namespace titans {

// Transpose `Forward::errors`; leaves the gradients of keys in input_grads[0], of values in chunk.v. Carries the
// gradient of the weights back over the chunk.
template <class T> void Backward<T>::errors(const Matrices<T>& w, bool apart) {
    for (int i = 0; i < last; ++i) {
        const Matrix<T>& grad = delta_grads[i];
        multiply(grad, chunk.slopes[i], pull_grads[i]);
        multiply(grad, curves[i], grad);
        product<WHOLE, false>(pull_grads[i], w[i + 1], Into<T>{delta_grads[i + 1], 1, 1});
    }
    for (int t = 0; t < tokens; ++t) pulled(t, delta_grads[last][t]);
    for (int i = last; i >= 0; --i) {
        const Factors<T> read{chunk.scaled(queries[i], chunk.weights), query_slopes[i]};
        const Factors<T> key{chunk.inputs[i], delta_grads[i]};
        const Factors<T> error = i ? Factors<T>{pull_grads[i - 1], chunk.deltas[i]} : Factors<T>{};
        const Into<T> weights{state_grad.weights[i], 1, chunk.weights[tokens - 1]};
        if (apart) {
            product<WHOLE, true>(read.left, read.right, weights);
            product<WHOLE, true>(key.left, key.right, Into<T>{anchor_grad[i]});
            if (i) product<WHOLE, true>(error.left, error.right, Into<T>{anchor_grad[i], 1, 1});
        } else if (i) {
            product<WHOLE, true, T>({read, key, error}, weights);
        } else {
            product<WHOLE, true, T>({read, key}, weights);
        }
        product<WHOLE, false>(delta_grads[i], turned[i], Into<T>{input_grads[i], 1, 1});
        if (i) multiply_add(input_grads[i], chunk.slopes[i - 1], delta_grads[i - 1]);
    }
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
