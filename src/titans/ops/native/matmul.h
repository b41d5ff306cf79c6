// Matrix products of operands in the first or second level of cache.
//
// Matrices are row-major with a pitch: elements from one row to the next. Columns up to the next whole vector belong to
// a matrix, hold 0 and may be overwritten, so that nothing needs a loop for what is left of a row.
#pragma once

#include <algorithm>
#include <initializer_list>

#include "vector.h"

namespace titans {

template <class T> inline int padded(int n) { return (n + LANES<T> - 1) / LANES<T> * LANES<T>; }

// An odd number of cache lines, so that a column's elements do not share few sets of the first-level cache.
template <class T> inline int pitch(int n) {
    const int line = 64 / sizeof(T);
    return ((n + line - 1) / line | 1) * line;
}

template <class T> struct Matrix {
    T* data;
    int rows, columns, ld;

    T* operator[](int row) const { return data + (size_t)row * ld; }
    int width() const { return padded<T>(columns); }
};

// Which part of a product is computed, where a matrix of tokens by tokens is lower triangular.
enum Part {
    WHOLE,
    LOWER,           // the result's lower triangle, and some of what is above
    FROM_LOWER,      // the left operand is lower triangular
    FROM_LOWER_T,    // the left operand is the transpose of one
};

// Where a product goes: out = keep * out + scale * row_scale[row] * product.
template <class T> struct Into {
    Matrix<T> out;
    T scale = 1, keep = 0;
    const T* row_scale = nullptr;

    void operator()(int i, int j, Vec<T> v) const {
        T* p = out[i] + j;
        v *= row_scale ? scale * row_scale[i] : scale;
        if (keep != 0) v += load(p) * keep;
        store(p, v);
    }
};

template <class T> struct Factors {
    Matrix<T> left, right;
};

template <Part part, class T, int R, int C, bool transposed, class Out>
inline void tile(int i, int j, const Factors<T>* factors, int count, const Out& out) {
    Vec<T> sums[R][C] = {};
    for (const Factors<T>* f = factors; f < factors + count; ++f) {
        const Matrix<T>&a = f->left, &b = f->right;
        const int first = part == FROM_LOWER_T ? i : 0, last = part == FROM_LOWER ? i + R : b.rows;
        const T* x = transposed ? a[first] + i : a[i] + first;
        const T* y = b[first] + j;
        for (int p = first; p < last; ++p) {
            Vec<T> right[C];
            for (int c = 0; c < C; ++c) right[c] = load(y + c * LANES<T>);
            for (int r = 0; r < R; ++r) {
                const T left = x[transposed ? r : (size_t)r * a.ld];
                for (int c = 0; c < C; ++c) sums[r][c] += left * right[c];
            }
            x += transposed ? a.ld : 1;
            y += b.ld;
        }
    }
    const Out into = out;  // a copy, which no store can change: its members stay in registers
#pragma GCC unroll 6  // or the sums would leave their registers to be counted through
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
        for (int c = 0; c < C; ++c) into(i + r, j + c * LANES<T>, sums[r][c]);
    }
}

// Call out(row, column, sums) with each vector of the sum of the factors' products, the left ones transposed or not.
template <Part part, bool transposed, class T, class Out>
inline void product(std::initializer_list<Factors<T>> factors, const Out& out) {
    constexpr int BLOCK = 6;  // rows; with two vectors of columns, 12 sums, 2 vectors and a factor fill 16 registers
    const Factors<T>* f = factors.begin();
    const int rows = transposed ? f->left.columns : f->left.rows, columns = f->right.width(), n = factors.size();
    for (int j = 0; j < columns; j += 2 * LANES<T>) {
        const bool two = columns - j > LANES<T>;
        for (int i = 0; i < rows;) {
            const int left = rows - i, count = left >= BLOCK ? BLOCK : left >= 4 ? 4 : left >= 2 ? 2 : 1;
            if (part != LOWER || j < i + count) {
                if (two) {
                    if (count == BLOCK) tile<part, T, BLOCK, 2, transposed>(i, j, f, n, out);
                    else if (count == 4) tile<part, T, 4, 2, transposed>(i, j, f, n, out);
                    else if (count == 2) tile<part, T, 2, 2, transposed>(i, j, f, n, out);
                    else tile<part, T, 1, 2, transposed>(i, j, f, n, out);
                } else {
                    if (count == BLOCK) tile<part, T, BLOCK, 1, transposed>(i, j, f, n, out);
                    else if (count == 4) tile<part, T, 4, 1, transposed>(i, j, f, n, out);
                    else if (count == 2) tile<part, T, 2, 1, transposed>(i, j, f, n, out);
                    else tile<part, T, 1, 1, transposed>(i, j, f, n, out);
                }
            }
            i += count;
        }
    }
}

template <Part part, bool transposed, class T, class Out>
inline void product(const Matrix<T>& a, const Matrix<T>& b, const Out& out) {
    product<part, transposed, T>({{a, b}}, out);
}

// Transpose a square of vectors: halves of pairs of them are exchanged, then quarters, and so on.
template <class T, int half> inline void transpose_square(Vec<T>* v) {
    constexpr int SIDE = LANES<T>;
    typename Vectors<T>::I low, high;
#pragma GCC unroll 16
    for (int i = 0; i < SIDE; ++i) {
        low[i] = i & half ? i - half + SIDE : i;
        high[i] = i & half ? i + SIDE : i + half;
    }
#pragma GCC unroll 16
    for (int i = 0; i < SIDE; ++i) {
        if (i & half) continue;
        const Vec<T> a = v[i], b = v[i + half];
        v[i] = pick<T>(a, b, low), v[i + half] = pick<T>(a, b, high);
    }
    if constexpr (half > 1) transpose_square<T, half / 2>(v);
}

template <class T> inline void transpose(const Matrix<T>& x, const Matrix<T>& out) {
    constexpr int SIDE = LANES<T>;
    for (int i = 0; i < x.rows; i += SIDE)
        for (int j = 0; j < x.columns; j += SIDE) {
            Vec<T> v[SIDE];
#pragma GCC unroll 16
            for (int r = 0; r < SIDE; ++r) v[r] = i + r < x.rows ? load(x[i + r] + j) : Vec<T>{};
            transpose_square<T, SIDE / 2>(v);
#pragma GCC unroll 16
            for (int c = 0; c < SIDE; ++c)
                if (j + c < x.columns) store(out[j + c] + i, v[c]);
        }
}

}  // namespace titans
