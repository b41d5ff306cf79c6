// The forward pass of one head: chunk after chunk, read and write.
#pragma once

#include "chunk.h"

namespace titans {

template <class T> class Forward {
    const Problem& p;
    Chunk<T> chunk;
    State<T> state;
    Matrices<T> anchor, reads;
    Trace<T> spare;  // where nothing is kept
    Matrix<T> mixed;
    T* unit;

  public:
    Forward(const Problem& p, Arena<T>& arena)
        : p(p), chunk(p, arena), state(p, arena), spare(p, arena), mixed(arena.matrix(p.tokens, p.tokens)),
          unit(arena.row(p.widths[p.layers])) {
        for (int i = 0; i < p.layers; ++i) {
            anchor.push_back(arena.matrix(p.widths[i], p.widths[i + 1]));
            reads.push_back(arena.matrix(p.tokens, p.widths[i + 1]));
        }
    }

    void run(int head) {
        chunk.norm.fetch(p, head);
        state.fetch(p, p.memory, head);
        for (int i = 0; i < p.layers; ++i)
            copy<T>(part<T>(p, p.memory, 2 * p.layers + i, head), p.widths[i + 1], anchor[i]);
        for (int c = 0; c < p.chunks; ++c) {
            if (p.trace && c % p.group == 0) state.keep(State<T>::kept(p, head, c / p.group));
            const Trace<T> trace = p.trace ? Trace<T>::of(p, head, c) : spare;
            chunk.fetch(head, c);
            errors(c ? state.weights : anchor, trace);
            sizes(trace, p.norms ? (T*)p.norms + (head * p.chunks + c) * p.tokens : nullptr);
            chunk.coefficients(trace.limits);
            read(trace);
            deliver(p, reads[chunk.last], p.y, head, c);
            chunk.write(state, state);
        }
        state.deliver(p, p.results, head);
    }

  private:
    // Forward and backward of the keys through the anchor.
    void errors(const Matrices<T>& w, const Trace<T>& trace) {
        const int last = chunk.last;
        for (int i = 0; i <= last; ++i) {
            const Matrix<T>& z = trace.products[i];
            product<WHOLE, false>(chunk.inputs[i], w[i], Into<T>{z});
            if (i == last) break;
            const Matrix<T>&a = chunk.inputs[i + 1], &slope = chunk.slopes[i];
            with_activation(p.activation, [&](auto kind) {
                each(z, [&](int t, int j) {
                    const Bend<T> bent = bend<T, decltype(kind)::value>(load(z[t] + j));
                    store(a[t] + j, bent.value), store(slope[t] + j, bent.slope);
                });
            });
        }
        for (int t = 0; t < p.tokens; ++t) {
            T *z = trace.products[last][t], *delta = chunk.deltas[last][t];
            const T rstd = chunk.norm.scale ? chunk.norm.standardise(z, unit) : 1;
            chunk.norm.aim(p, chunk.inputs[0][t], chunk.v[t], chunk.norm.scale ? unit : z, delta);
            if (chunk.norm.scale) chunk.norm.unstandardise(delta, unit, rstd, delta);
            std::memcpy(trace.pulls[last][t], delta, trace.pulls[last].ld * sizeof(T));
            trace.limits[t] = chunk.norm.steepest * rstd * rstd;
        }
        for (int i = last; i-- > 0;) {
            product<WHOLE, false>(chunk.deltas[i + 1], chunk.transposed(w[i + 1]), Into<T>{trace.pulls[i]});
            multiply(trace.pulls[i], chunk.slopes[i], chunk.deltas[i]);
        }
    }

    // Norms of the gradients, and from them the limits, which hold the norm's slope before.
    void sizes(const Trace<T>& trace, T* norms) {
        if (!norms && !p.limited) return;
        for (int t = 0; t < p.tokens; ++t) {
            T total = 0, error = 0;
            for (int i = 0; i < p.layers; ++i) {
                const T *a = chunk.inputs[i][t], *d = chunk.deltas[i][t];
                error = dot(d, d, p.widths[i + 1]);
                total += dot(a, a, p.widths[i]) * error;
            }
            if (norms) norms[t] = std::sqrt(total);
            if (!p.limited) continue;
            const T curvature = total / std::max(error, std::numeric_limits<T>::min()) * trace.limits[t];
            trace.limits[t] = curvature < 1 ? 1 : 1 / curvature;
        }
    }

    // Each query at the memory as of its own token.
    void read(const Trace<T>& trace) {
        for (int i = 0; i < p.layers; ++i) {
            const Matrix<T>&x = i ? reads[i - 1] : chunk.q, &z = trace.reads[i];
            product<WHOLE, false>(x, state.weights[i], Into<T>{z, 1, 0, chunk.weights});
            product<WHOLE, false>(x, state.surprise[i], Into<T>{z, 1, 1, chunk.surprise});
            product<LOWER, false>(x, chunk.transposed(chunk.inputs[i]), [&](int t, int j, Vec<T> gram) {
                store(mixed[t] + j, gram * load(chunk.gradient[t] + j));
            });
            product<FROM_LOWER, false>(mixed, chunk.deltas[i], Into<T>{z, -1, 1});
            const Matrix<T>& y = reads[i];
            if (i < chunk.last)
                with_activation(p.activation, [&](auto kind) {
                    each(z, [&](int t, int j) { store(y[t] + j, bend<T, decltype(kind)::value>(load(z[t] + j)).value); });
                });
        }
        const Matrix<T>&z = trace.reads[chunk.last], &y = reads[chunk.last];
        for (int t = 0; t < p.tokens; ++t) {
            if (chunk.norm.scale) chunk.norm.standardise(z[t], unit);
            for (int j = 0; j < y.columns; j += LANES<T>) {
                Vec<T> out = chunk.norm.scale ? load(unit + j) * load(chunk.norm.scale + j) : load(z[t] + j);
                if (p.residual) out += load(chunk.q[t] + j);
                store(y[t] + j, out);
            }
        }
    }
};

}  // namespace titans
