// The token rule's triangular systems: x_t = 2 (x_t - sum_{j < t} m[t, j] x_j), and the transpose of that.
#pragma once

#include "matmul.h"

namespace titans {

constexpr int STEP = 6;  // rows solved together, a tile of `product`

// Rows of a matrix, from one on.
template <class T> inline Matrix<T> rows(const Matrix<T>& x, int first, int count) {
    return {x[first], count, x.columns, x.ld};
}

// In place; of `m` only what is below the diagonal counts.
template <class T> inline void solve(const Matrix<T>& m, const Matrix<T>& x) {
    for (int i = 0; i < x.rows; i += STEP) {
        const int n = std::min(STEP, x.rows - i);
        if (i) product<WHOLE, false>(Matrix<T>{m[i], n, i, m.ld}, rows(x, 0, i), Into<T>{rows(x, i, n), -1, 1});
        for (int j = 0; j < x.columns; j += LANES<T>) {
            Vec<T> solved[STEP];
            for (int r = 0; r < n; ++r) {
                Vec<T> v = load(x[i + r] + j);
                for (int c = 0; c < r; ++c) v -= solved[c] * m[i + r][i + c];
                solved[r] = v * T(2);
                store(x[i + r] + j, solved[r]);
            }
        }
    }
}

template <class T> inline void solve_transposed(const Matrix<T>& m, const Matrix<T>& x) {
    for (int i = (x.rows - 1) / STEP * STEP; i >= 0; i -= STEP) {
        const int n = std::min(STEP, x.rows - i), end = i + n, after = x.rows - end;
        if (after) {
            const Matrix<T> below{m[end] + i, after, n, m.ld};
            product<WHOLE, true>(below, rows(x, end, after), Into<T>{rows(x, i, n), -1, 1});
        }
        for (int j = 0; j < x.columns; j += LANES<T>) {
            Vec<T> solved[STEP];
            for (int r = n; r-- > 0;) {
                Vec<T> v = load(x[i + r] + j);
                for (int c = r + 1; c < n; ++c) v -= solved[c] * m[i + c][i + r];
                solved[r] = v * T(2);
                store(x[i + r] + j, solved[r]);
            }
        }
    }
}

}  // namespace titans
