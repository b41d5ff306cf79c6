// The layer norm on the last product, and the memory's error behind it.
#pragma once

#include "standardise.h"

namespace titans {

template <class T> struct Norm {
    int width;
    T* scale;     // [width]; null: no norm
    T steepest;   // the largest square of the scale

    Norm(const Problem& p, Arena<T>& arena) : width(p.widths[p.layers]), scale(arena.row(width)), steepest(1) {}

    void fetch(const Problem& p, int head) {
        if (!p.scale) {
            scale = nullptr;
            return;
        }
        std::memcpy(scale, (const T*)p.scale + head % p.heads * width, width * sizeof(T));
        clear_rest(scale, width);
        steepest = 0;
        for (int j = 0; j < width; ++j) steepest = std::max(steepest, scale[j] * scale[j]);
    }
    // Without scale; returns the reciprocal standard deviation.
    T standardise(const T* z, T* unit) const { return titans::standardise(z, width, T(width), unit); }
    // Carry a gradient back through `standardise`; `out` may be `grad`.
    void unstandardise(const T* grad, const T* unit, T rstd, T* out) const {
        titans::unstandardise(grad, unit, rstd, width, T(width), out);
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

}  // namespace titans
