// Matrix products of operands in the first or second level of cache.
//
// Matrices are row-major with a pitch: elements from one row to the next. Columns up to the next whole vector belong to
// a matrix, hold 0 and may be overwritten, so that nothing needs a loop for what is left of a row.
#pragma once

#include <algorithm>

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

// Where a product goes: out = [out +] scale * row_scale[row] * product.
template <class T> struct Into {
    Matrix<T> out;
    T scale = 1;
    bool add = false;
    const T* row_scale = nullptr;

    void operator()(int i, int j, Vec<T> v) const {
        T* p = out[i] + j;
        v *= row_scale ? scale * row_scale[i] : scale;
        store(p, add ? load(p) + v : v);
    }
};

template <class T, int R, int C, bool transposed, class Out>
inline void tile(int i, int j, int first, int last, const Matrix<T>& a, const Matrix<T>& b, const Out& out) {
    Vec<T> sums[R][C] = {};
    const T* x = transposed ? a[first] + i : a[i] + first;
    const T* y = b[first] + j;
    for (int p = first; p < last; ++p) {
        Vec<T> right[C];
        for (int c = 0; c < C; ++c) right[c] = load(y + c * LANES<T>);
        for (int r = 0; r < R; ++r) {
            const Vec<T> left = Vec<T>{} + x[transposed ? r : (size_t)r * a.ld];
            for (int c = 0; c < C; ++c) sums[r][c] += left * right[c];
        }
        x += transposed ? a.ld : 1;
        y += b.ld;
    }
    for (int r = 0; r < R; ++r)
        for (int c = 0; c < C; ++c) out(i + r, j + c * LANES<T>, sums[r][c]);
}

// out(row, column, sums) of a b, or of a^T b, for each vector of the result.
template <Part part, bool transposed, class T, class Out>
inline void product(const Matrix<T>& a, const Matrix<T>& b, const Out& out) {
    constexpr int BLOCK = 6;  // rows; with two vectors of columns, 12 sums, 2 vectors and a factor fill 16 registers
    const int rows = transposed ? a.columns : a.rows, inner = transposed ? a.rows : a.columns, columns = b.width();
    for (int j = 0; j < columns; j += 2 * LANES<T>) {
        const bool two = columns - j > LANES<T>;
        for (int i = 0; i < rows;) {
            const int left = rows - i, count = left >= BLOCK ? BLOCK : left >= 4 ? 4 : left >= 2 ? 2 : 1;
            const int first = part == FROM_LOWER_T ? i : 0, last = part == FROM_LOWER ? i + count : inner;
            if (part != LOWER || j < i + count) {
                if (two) {
                    if (count == BLOCK) tile<T, BLOCK, 2, transposed>(i, j, first, last, a, b, out);
                    else if (count == 4) tile<T, 4, 2, transposed>(i, j, first, last, a, b, out);
                    else if (count == 2) tile<T, 2, 2, transposed>(i, j, first, last, a, b, out);
                    else tile<T, 1, 2, transposed>(i, j, first, last, a, b, out);
                } else {
                    if (count == BLOCK) tile<T, BLOCK, 1, transposed>(i, j, first, last, a, b, out);
                    else if (count == 4) tile<T, 4, 1, transposed>(i, j, first, last, a, b, out);
                    else if (count == 2) tile<T, 2, 1, transposed>(i, j, first, last, a, b, out);
                    else tile<T, 1, 1, transposed>(i, j, first, last, a, b, out);
                }
            }
            i += count;
        }
    }
}

template <class T> inline void transpose(const Matrix<T>& x, const Matrix<T>& out) {
    constexpr int SIDE = LANES<T>;
    for (int i = 0; i < x.rows; i += SIDE)
        for (int j = 0; j < x.columns; j += SIDE) {
            const int rows = std::min(SIDE, x.rows - i), columns = std::min(SIDE, x.columns - j);
            for (int c = 0; c < columns; ++c) {
                Vec<T> v = {};
                if (rows == SIDE)
                    for (int r = 0; r < SIDE; ++r) v[r] = x[i + r][j + c];
                else
                    for (int r = 0; r < rows; ++r) v[r] = x[i + r][j + c];
                store(out[j + c] + i, v);
            }
        }
}

}  // namespace titans
