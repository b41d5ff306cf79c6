// The forward pass of one head: chunk after chunk, read and write.
#pragma once

#include "chunk.h"
#include "solve.h"

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
            if (!p.limited) chunk.coefficients(trace.limits);
            errors(c ? state.weights : anchor, trace);
            sizes(trace, p.norms ? (T*)p.norms + (head * p.chunks + c) * p.tokens : nullptr);
            if (p.limited) chunk.coefficients(trace.limits);
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
        for (int i = 0; i < last; ++i) {
            product<WHOLE, false>(chunk.inputs[i], w[i], Into<T>{trace.products[i]});
            chunk.features[i].fetch(p, trace.products[i]);
        }
        if (p.online) online();
        else anchored(w[last], trace);
        for (int t = 0; t < p.tokens; ++t)
            std::memcpy(trace.pulls[last][t], chunk.deltas[last][t], trace.pulls[last].ld * sizeof(T));
        for (int i = last; i-- > 0;) {
            product<WHOLE, false>(chunk.deltas[i + 1], chunk.transposed(w[i + 1]), Into<T>{trace.pulls[i]});
            chunk.features[i].back(p, trace.pulls[i], chunk.deltas[i]);
        }
    }

    // The last layer's errors, each at the anchor.
    void anchored(const Matrix<T>& w, const Trace<T>& trace) {
        const int last = chunk.last;
        const Norm<T>& norm = chunk.norm;
        const Matrix<T>& z = norm.scale ? trace.products[last] : chunk.deltas[last];
        product<WHOLE, false>(chunk.inputs[last], w, Into<T>{z});
        for (int t = 0; t < p.tokens; ++t) {
            T* delta = chunk.deltas[last][t];
            const T rstd = norm.scale ? norm.standardise(z[t], unit) : 1;
            norm.aim(p, chunk.inputs[0][t], chunk.v[t], norm.scale ? unit : z[t], delta);
            if (norm.scale) norm.unstandardise(delta, unit, rstd, delta);
            trace.limits[t] = norm.steepest * rstd * rstd;
        }
    }

    // The last layer's errors, each at the weights before its own token, which the errors before have changed.
    void online() {
        const int last = chunk.last;
        const Matrix<T>&f = chunk.inputs[last], &error = chunk.deltas[last];
        unmixed(last, f, chunk.reach.before(), error);
        each(error, [&](int t, int j) {
            const Vec<T> target = load(chunk.v[t] + j);
            store(error[t] + j, load(error[t] + j) - (p.residual ? target - load(chunk.inputs[0][t] + j) : target));
        });
        solve(mixed, error);
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

    // What a layer answers as if the chunk had no errors; and `mixed`, how much of each error comes off it.
    void unmixed(int i, const Matrix<T>& x, const Reach<T>& reach, const Matrix<T>& z) {
        product<WHOLE, false>(x, state.weights[i], Into<T>{z, 1, 0, reach.weights});
        product<WHOLE, false>(x, state.surprise[i], Into<T>{z, 1, 1, reach.surprise});
        product<LOWER, false>(x, chunk.transposed(chunk.inputs[i]), [&](int t, int j, Vec<T> gram) {
            store(mixed[t] + j, gram * load(reach.gradient[t] + j));
        });
    }

    // Each query at the memory as of its own token.
    void read(const Trace<T>& trace) {
        const Norm<T>& norm = chunk.norm;
        for (int i = 0; i < p.layers; ++i) {
            const bool last = i == chunk.last;
            const Matrix<T>&y = reads[i], &z = last && !norm.scale ? y : trace.reads[i];
            unmixed(i, i ? reads[i - 1] : chunk.q, chunk.reach, z);
            product<FROM_LOWER, false>(mixed, chunk.deltas[i], Into<T>{z, T(-p.rate(i)), 1});
            if (last) break;
            each_bend(p, z, [&](int t, int j, const Bend<T>& bent) { store(y[t] + j, bent.value); });
            normalise(p, y);
        }
        const Matrix<T>& y = reads[chunk.last];
        for (int t = 0; t < p.tokens; ++t) {
            if (norm.scale) norm.standardise(trace.reads[chunk.last][t], unit);
            for (int j = 0; j < y.columns; j += LANES<T>) {
                Vec<T> out = norm.scale ? load(unit + j) * load(norm.scale + j) : load(y[t] + j);
                if (p.residual) out += load(chunk.q[t] + j);
                store(y[t] + j, out);
            }
        }
    }
};

}  // namespace titans
