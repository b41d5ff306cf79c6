// Rows centred and brought to one length: the layer norm on the output, and the features between the layers.
#pragma once

#include "problem.h"

namespace titans {

constexpr double NORM_EPS = 1e-6;  // as in network.py

// Set what lies behind the columns of a row, up to a whole vector, to 0.
template <class T> inline void clear_rest(T* x, int width) {
    if (width % LANES<T>) std::fill(x + width, x + padded<T>(width), T(0));  // mostly nothing, and a call to do that
}

template <class T> inline T mean(const T* x, int width) {
    Vec<T> total = {};
    for (int j = 0; j < width; j += LANES<T>) total += load(x + j);
    return sum<T>(total) / width;
}

// Centre a row and bring it to a length, given its square; returns the factor. `out` may be `x`.
template <class T> inline T standardise(const T* x, int width, T square, T* out) {
    const T centre = mean(x, width);
    for (int j = 0; j < width; j += LANES<T>) store(out + j, load(x + j) - centre);
    clear_rest(out, width);
    const T factor = std::sqrt(square / (dot(out, out, width) + width * T(NORM_EPS)));
    for (int j = 0; j < width; j += LANES<T>) store(out + j, load(out + j) * factor);
    return factor;
}

// Carry a gradient back through `standardise`, which returned `unit` and `factor`, and with it `by_factor`, the
// gradient of the factor's logarithm. `out` may be `grad`.
template <class T>
inline void unstandardise(const T* grad, const T* unit, T factor, int width, T square, T* out, T by_factor = 0) {
    const T centre = mean(grad, width), along = (dot(grad, unit, width) + by_factor) / square;
    for (int j = 0; j < width; j += LANES<T>)
        store(out + j, (load(grad + j) - centre - load(unit + j) * along) * factor);
    clear_rest(out, width);
}

}  // namespace titans
