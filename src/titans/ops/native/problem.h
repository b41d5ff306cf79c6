// One call, and where its parts lie in memory.
#pragma once

#include <vector>

#include "matmul.h"

namespace titans {

// Tokens [batch, heads, chunks * tokens, width]; strides of the first three dimensions, the last is contiguous.
struct Stream {
    void* data;
    int64_t strides[3];
};

// What Python hands over; all tensors but streams are contiguous. Mirrored in ops/associative_memory/native.py.
struct Problem {
    int64_t batch, heads, chunks, tokens, layers, group;  // tokens of a chunk; chunks per kept state
    int64_t activation, residual, limited, threads;
    int64_t online, feature_norm;  // the token rule; centred inputs of length 1 for all layers but the first
    double hidden_lr;              // step size of the layers below the last, in units of theta
    const int64_t* widths;  // layers + 1

    Stream q, k, v, y;
    const void *theta, *decay, *eta;  // [batch, heads, chunks * tokens]
    const void* scale;                // of the norm [heads, width]; null: no norm
    const void* const* memory;        // weights, surprises, anchors: [batch, heads, in, out] each
    void* norms;                      // of the gradients [batch, heads, chunks * tokens]; null: not asked for
    void* const* results;             // weights and surprises after the call
    void* trace;                      // what the backward pass needs of each token; null: none will follow
    void* states;                     // and of each group [batch * heads, groups, state]
    void* scratch;                    // a part for each thread

    // Backward only: gradients that come in, and those that go out, each shaped like what it belongs to.
    Stream y_grad, q_grad, k_grad, v_grad;
    const void* const* result_grads;
    void *theta_grad, *decay_grad, *eta_grad;
    void* scale_grad;  // [batch, heads, width]
    void* const* memory_grads;

    int groups() const { return (chunks + group - 1) / group; }
    int widest() const { return *std::max_element(widths, widths + layers + 1); }
    double rate(int layer) const { return layer < layers - 1 ? hidden_lr : 1; }
};

// Hands out memory front to back; with a null base it only counts.
template <class T> struct Arena {
    T* base;
    size_t used = 0;

    T* take(size_t count) {
        T* p = base ? base + used : nullptr;
        used += (count + 15) / 16 * 16;
        return p;
    }
    T* row(int n) { return take(padded<T>(n)); }
    Matrix<T> matrix(int rows, int columns) {
        return {take((size_t)rows * pitch<T>(columns)), rows, columns, pitch<T>(columns)};
    }
    // Without gaps between rows, for what is kept from one pass to the other.
    Matrix<T> packed(int rows, int columns) {
        return {take((size_t)rows * padded<T>(columns)), rows, columns, padded<T>(columns)};
    }
};

// A buffer that takes any matrix up to a size.
template <class T> struct Buffer {
    T* data;

    Buffer(Arena<T>& arena, int rows, int columns) : data(arena.matrix(rows, columns).data) {}
    Matrix<T> as(int rows, int columns) const { return {data, rows, columns, pitch<T>(columns)}; }
};

template <class T> using Matrices = std::vector<Matrix<T>>;

template <class T> inline void copy(const T* from, size_t stride, const Matrix<T>& to) {
    for (int i = 0; i < to.rows; ++i) {
        std::memcpy(to[i], from + i * stride, to.columns * sizeof(T));
        std::fill(to[i] + to.columns, to[i] + to.width(), T(0));
    }
}

template <class T> inline void copy(const Matrix<T>& from, T* to, size_t stride) {
    for (int i = 0; i < from.rows; ++i) std::memcpy(to + i * stride, from[i], from.columns * sizeof(T));
}

template <class T> inline T* place(const Problem& p, const Stream& x, int head, int chunk) {
    return (T*)x.data + head / p.heads * x.strides[0] + head % p.heads * x.strides[1] + chunk * p.tokens * x.strides[2];
}

template <class T> inline void fetch(const Problem& p, const Stream& x, int head, int chunk, const Matrix<T>& to) {
    copy<T>(place<T>(p, x, head, chunk), x.strides[2], to);
}

template <class T> inline void deliver(const Problem& p, const Matrix<T>& x, const Stream& to, int head, int chunk) {
    copy<T>(x, place<T>(p, to, head, chunk), to.strides[2]);
}

// The part of `tensors[i]` that belongs to a head.
template <class T, class Pointer> inline T* part(const Problem& p, Pointer tensors, int i, int head) {
    return (T*)tensors[i] + head * p.widths[i % p.layers] * p.widths[i % p.layers + 1];
}

// Call f(row, column) for each vector of a matrix of this shape.
template <class T, class F> inline void each(const Matrix<T>& shape, F f) {
    for (int i = 0; i < shape.rows; ++i)
        for (int j = 0; j < shape.columns; j += LANES<T>) f(i, j);
}

template <class T> inline T dot(const T* x, const T* y, int width) {
    Vec<T> total = {};
    for (int j = 0; j < width; j += LANES<T>) total += load(x + j) * load(y + j);
    return sum<T>(total);
}

// out += factor * x
template <class T> inline void add(const T* x, T factor, int width, T* out) {
    for (int j = 0; j < width; j += LANES<T>) store(out + j, load(out + j) + load(x + j) * factor);
}

template <class T> inline void scale_rows(const Matrix<T>& x, const T* factors, const Matrix<T>& out) {
    each(x, [&](int i, int j) { store(out[i] + j, load(x[i] + j) * factors[i]); });
}

template <class T> inline void multiply(const Matrix<T>& x, const Matrix<T>& y, const Matrix<T>& out) {
    each(x, [&](int i, int j) { store(out[i] + j, load(x[i] + j) * load(y[i] + j)); });
}

template <class T> inline void multiply_add(const Matrix<T>& x, const Matrix<T>& y, const Matrix<T>& out) {
    each(x, [&](int i, int j) { store(out[i] + j, load(out[i] + j) + load(x[i] + j) * load(y[i] + j)); });
}

// What the forward pass keeps of one chunk.
template <class T> struct Trace {
    Matrices<T> products, reads;  // keys and queries through the layers, the last with a norm only [tokens, out]
    Matrices<T> pulls;            // errors back [tokens, out]
    T* limits;                    // how far each step was shortened [tokens]

    Trace(const Problem& p, Arena<T>& arena) {
        for (auto* part : {&products, &reads, &pulls})
            for (int i = 0; i < p.layers; ++i)
                if (part == &pulls || i < p.layers - 1 || p.scale)
                    part->push_back(arena.packed(p.tokens, p.widths[i + 1]));
        limits = arena.row(p.tokens);
    }
    static size_t size(const Problem& p) {
        Arena<T> arena{nullptr};
        Trace(p, arena);
        return arena.used;
    }
    static Trace of(const Problem& p, int head, int chunk) {
        Arena<T> arena{(T*)p.trace + (head * p.chunks + chunk) * size(p)};
        return Trace(p, arena);
    }
};

// A head's weights and surprises, layer by layer [in, out].
template <class T> struct State {
    Matrices<T> weights, surprise;

    State(const Problem& p, Arena<T>& arena) {
        for (auto* part : {&weights, &surprise})
            for (int i = 0; i < p.layers; ++i) part->push_back(arena.matrix(p.widths[i], p.widths[i + 1]));
    }
    static size_t size(const Problem& p) {
        size_t total = 0;
        for (int i = 0; i < p.layers; ++i) total += 2 * p.widths[i] * p.widths[i + 1];
        return total;
    }
    static T* kept(const Problem& p, int head, int group) {
        return (T*)p.states + (head * p.groups() + group) * size(p);
    }
    template <class Pointer> void fetch(const Problem& p, Pointer tensors, int head) const {
        for (int i = 0; i < p.layers; ++i) {
            copy<T>(part<T>(p, tensors, i, head), p.widths[i + 1], weights[i]);
            copy<T>(part<T>(p, tensors, i + p.layers, head), p.widths[i + 1], surprise[i]);
        }
    }
    template <class Pointer> void deliver(const Problem& p, Pointer tensors, int head) const {
        for (int i = 0; i < p.layers; ++i) {
            copy<T>(weights[i], part<T>(p, tensors, i, head), p.widths[i + 1]);
            copy<T>(surprise[i], part<T>(p, tensors, i + p.layers, head), p.widths[i + 1]);
        }
    }
    void restore(const T* from) const {
        for (auto* part : {&weights, &surprise})
            for (auto& m : *part) copy<T>(from, m.columns, m), from += m.rows * m.columns;
    }
    void keep(T* to) const {
        for (auto* part : {&weights, &surprise})
            for (auto& m : *part) copy<T>(m, to, m.columns), to += m.rows * m.columns;
    }
};

}  // namespace titans
