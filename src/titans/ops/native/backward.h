// The backward pass of one head: group after group of chunks from the last, the states within a group made anew, then
// chunk after chunk. `x_grad` is the gradient of what is `x` in the forward pass.
#pragma once

#include "chunk.h"

namespace titans {

template <class T> class Backward {
    const Problem& p;
    const int tokens, last;
    Chunk<T> chunk;
    std::vector<State<T>> states;  // before each chunk of a group
    State<T> state_grad;           // after the present chunk, then before it
    Matrices<T> anchor, anchor_grad;
    Matrices<T> curves;                    // second derivatives at the products, times what is pulled back
    Matrices<T> queries;                   // each layer's input of the queries [tokens, in]
    Matrices<T> query_slopes;              // slopes at their products, then the products' gradients [tokens, out]
    Matrices<T> input_grads, delta_grads, pull_grads;
    Matrices<T> turned;                    // transposed weights
    Matrix<T> y_grad, gram, mixed, back, gradient_grad;
    Buffer<T> by_weights, by_surprise;
    T *weights_grad, *surprise_grad, *momentum_grad, past_grad;
    T *step_grad, *slope_grads, *gradient_row, *momentum_row, *pasts, *rstds, *ones;
    T *scale_grad, *unit, *aims, *ahead, steepest_grad;
    Matrix<T> units;

  public:
    Backward(const Problem& p, Arena<T>& arena)
        : p(p), tokens(p.tokens), last(p.layers - 1), chunk(p, arena), state_grad(p, arena),
          y_grad(arena.matrix(tokens, p.widths[p.layers])), gram(arena.matrix(tokens, tokens)),
          mixed(arena.matrix(tokens, tokens)), back(arena.matrix(tokens, tokens)),
          gradient_grad(arena.matrix(tokens, tokens)), by_weights(arena, tokens, p.widest()),
          by_surprise(arena, tokens, p.widest()) {
        for (auto* part : {&weights_grad, &surprise_grad, &momentum_grad, &step_grad, &slope_grads, &gradient_row,
                           &momentum_row, &pasts, &rstds, &ones})
            *part = arena.row(tokens);
        for (auto* part : {&scale_grad, &unit, &aims, &ahead}) *part = arena.row(p.widths[p.layers]);
        units = arena.matrix(tokens, p.widths[p.layers]);
        for (int i = 0; i < p.layers; ++i) {
            const int in = p.widths[i], out = p.widths[i + 1];
            for (auto* part : {&anchor, &anchor_grad}) part->push_back(arena.matrix(in, out));
            for (auto* part : {&queries, &input_grads}) part->push_back(arena.matrix(tokens, in));
            for (auto* part : {&curves, &query_slopes, &delta_grads, &pull_grads}) part->push_back(arena.matrix(tokens, out));
            turned.push_back(arena.matrix(out, in));
        }
        for (int i = 0; i < std::min(p.group, p.chunks); ++i) states.emplace_back(p, arena);
    }

    void run(int head) {
        chunk.norm.fetch(p, head);
        state_grad.fetch(p, p.result_grads, head);
        std::fill(scale_grad, scale_grad + padded<T>(p.widths[p.layers]), T(0));
        std::fill(ones, ones + padded<T>(tokens), T(1));
        steepest_grad = 0;
        for (int i = 0; i < p.layers; ++i) {
            copy<T>(part<T>(p, p.memory, 2 * p.layers + i, head), p.widths[i + 1], anchor[i]);
        }
        for (int group = p.groups(); group-- > 0;) {
            const int first = group * p.group, count = std::min(p.chunks - first, p.group);
            states[0].restore(State<T>::kept(p, head, group));
            for (int i = 1; i < count; ++i) {
                recall(head, first + i - 1, Trace<T>::of(p, head, first + i - 1));
                chunk.write(states[i - 1], states[i]);
            }
            for (int i = count; i-- > 0;) walk(head, first + i, states[i]);
        }
        state_grad.deliver(p, p.memory_grads, head);
        for (int i = 0; i < p.layers; ++i)
            copy<T>(anchor_grad[i], part<T>(p, p.memory_grads, 2 * p.layers + i, head), p.widths[i + 1]);
        if (!chunk.norm.scale) return;
        share_steepest();
        std::memcpy((T*)p.scale_grad + head * chunk.norm.width, scale_grad, chunk.norm.width * sizeof(T));
    }

  private:
    // Make a chunk's inputs, errors and coefficients anew from its trace.
    void recall(int head, int c, const Trace<T>& trace) {
        chunk.fetch(head, c);
        for (int i = 0; i < last; ++i) {
            const Matrix<T>&z = trace.products[i], &pull = trace.pulls[i];
            const Matrix<T>&a = chunk.inputs[i + 1], &slope = chunk.slopes[i], &delta = chunk.deltas[i];
            with_activation(p.activation, [&](auto kind) {
                each(z, [&](int t, int j) {
                    const Bend<T> bent = bend<T, decltype(kind)::value>(load(z[t] + j));
                    const Vec<T> u = load(pull[t] + j);
                    store(a[t] + j, bent.value), store(slope[t] + j, bent.slope);
                    store(delta[t] + j, u * bent.slope), store(curves[i][t] + j, u * bent.curve);
                });
            });
        }
        copy<T>(trace.pulls[last].data, trace.pulls[last].ld, chunk.deltas[last]);
        chunk.coefficients(trace.limits);
    }

    void walk(int head, int c, const State<T>& state) {
        const Trace<T> trace = Trace<T>::of(p, head, c);
        recall(head, c, trace);
        for (auto* row : {weights_grad, surprise_grad, momentum_grad, slope_grads})
            std::fill(row, row + padded<T>(tokens), T(0));
        past_grad = 0;
        written();
        read(head, c, state, trace);
        const size_t at = (head * p.chunks + c) * tokens;
        limited(trace, (T*)p.theta_grad + at);
        coefficients((T*)p.decay_grad + at, (T*)p.eta_grad + at);
        if (c == 0)
            for (int i = 0; i < p.layers; ++i) transpose(anchor[i], turned[i]);
        errors(c ? state.weights : anchor, c == 0);
        deliver(p, input_grads[0], p.k_grad, head, c);
        deliver(p, chunk.v, p.v_grad, head, c);
    }

    // Transpose what `Chunk::write` adds to the state: gradients of inputs, errors and coefficients.
    void written() {
        T* reached_grad = gradient_grad[tokens - 1];  // the first layer sets, read() adds
        std::fill(reached_grad, reached_grad + padded<T>(tokens), T(0));
        for (int i = 0; i < p.layers; ++i) {
            const Matrix<T>&a = chunk.inputs[i], &delta = chunk.deltas[i];
            const Matrix<T>&w_grad = state_grad.weights[i], &s_grad = state_grad.surprise[i];
            const Matrix<T> w = by_weights.as(tokens, a.columns), s = by_surprise.as(tokens, a.columns);
            product<WHOLE, false>(delta, chunk.transposed(w_grad), Into<T>{w});
            product<WHOLE, false>(delta, chunk.transposed(s_grad), Into<T>{s});
            for (int t = 0; t < tokens; ++t) {
                const T reached = chunk.reached()[t], momentum = chunk.momentum[t];
                reached_grad[t] -= dot(a[t], w[t], a.columns);
                momentum_grad[t] -= dot(a[t], s[t], a.columns);
                for (int j = 0; j < a.columns; j += LANES<T>)
                    store(input_grads[i][t] + j, -(load(w[t] + j) * reached + load(s[t] + j) * momentum));
            }
            product<WHOLE, false>(chunk.scaled(a, chunk.reached()), w_grad, Into<T>{delta_grads[i], -1});
            product<WHOLE, false>(chunk.scaled(a, chunk.momentum), s_grad, Into<T>{delta_grads[i], -1, 1});
        }
    }

    // Transpose `Forward::read`.
    void read(int head, int c, const State<T>& state, const Trace<T>& trace) {
        fetch(p, p.y_grad, head, c, y_grad);
        copy<T>(chunk.q.data, chunk.q.ld, queries[0]);
        for (int i = 0; i < last; ++i) {
            const Matrix<T>&z = trace.reads[i], &x = queries[i + 1], &slope = query_slopes[i];
            with_activation(p.activation, [&](auto kind) {
                each(z, [&](int t, int j) {
                    const Bend<T> bent = bend<T, decltype(kind)::value>(load(z[t] + j));
                    store(x[t] + j, bent.value), store(slope[t] + j, bent.slope);
                });
            });
        }
        const Matrix<T>& z_grad = query_slopes[last];  // there is no slope at the last product
        for (int t = 0; t < tokens; ++t) {
            if (!chunk.norm.scale) {
                std::memcpy(z_grad[t], y_grad[t], z_grad.width() * sizeof(T));
                continue;
            }
            const T rstd = chunk.norm.standardise(trace.reads[last][t], unit);
            for (int j = 0; j < z_grad.columns; j += LANES<T>) {
                const Vec<T> g = load(y_grad[t] + j);
                store(scale_grad + j, load(scale_grad + j) + g * load(unit + j));
                store(z_grad[t] + j, g * load(chunk.norm.scale + j));
            }
            chunk.norm.unstandardise(z_grad[t], unit, rstd, z_grad[t]);
        }
        for (int i = last; i >= 0; --i) read_layer(i, state);
        const Matrix<T> q_grad = by_weights.as(tokens, p.widths[0]);
        if (p.residual) each(q_grad, [&](int t, int j) { store(q_grad[t] + j, load(q_grad[t] + j) + load(y_grad[t] + j)); });
        deliver(p, q_grad, p.q_grad, head, c);
    }

    void read_layer(int i, const State<T>& state) {
        const Matrix<T>&x = queries[i], &z_grad = query_slopes[i];
        const Matrix<T>&a = chunk.inputs[i], &delta = chunk.deltas[i];
        const Matrix<T> w = by_weights.as(tokens, x.columns), s = by_surprise.as(tokens, x.columns);
        transpose(state.weights[i], turned[i]);
        product<WHOLE, false>(z_grad, turned[i], Into<T>{w});
        product<WHOLE, false>(z_grad, chunk.transposed(state.surprise[i]), Into<T>{s});
        for (int t = 0; t < tokens; ++t) {
            const T a = chunk.weights[t], b = chunk.surprise[t];
            weights_grad[t] += dot(x[t], w[t], x.columns);
            surprise_grad[t] += dot(x[t], s[t], x.columns);
            for (int j = 0; j < x.columns; j += LANES<T>) store(w[t] + j, load(w[t] + j) * a + load(s[t] + j) * b);
        }
        carry_surprise(i, state);

        product<LOWER, false>(x, chunk.transposed(a), [&](int t, int j, Vec<T> v) {
            store(gram[t] + j, v);
            store(back[t] + j, v * load(chunk.gradient[t] + j));
        });
        const bool first = i == last;
        product<LOWER, false>(z_grad, chunk.transposed(delta), [&](int t, int j, Vec<T> v) {
            T* total = gradient_grad[t] + j;
            const Vec<T> here = -v * load(gram[t] + j);
            store(total, first && t < tokens - 1 ? here : load(total) + here);
            store(mixed[t] + j, v * load(chunk.gradient[t] + j));
        });
        product<FROM_LOWER_T, true>(back, z_grad, Into<T>{delta_grads[i], -1, 1});
        product<FROM_LOWER_T, true>(mixed, x, Into<T>{input_grads[i], -1, 1});
        product<FROM_LOWER, false>(mixed, a, Into<T>{w, -1, 1});
        if (i) multiply(w, query_slopes[i - 1], query_slopes[i - 1]);
    }

    // Carry the gradient of the surprise back over the chunk, that of the weights being still the one after it.
    void carry_surprise(int i, const State<T>& state) {
        const Matrix<T>&w = state.weights[i], &s = state.surprise[i];
        const Matrix<T>&w_grad = state_grad.weights[i], &s_grad = state_grad.surprise[i];
        const T b = chunk.surprise[tokens - 1], h = chunk.past;
        Vec<T> by_a = {}, by_b = {}, by_h = {};
        product<WHOLE, true>(chunk.scaled(queries[i], chunk.surprise), query_slopes[i], [&](int r, int j, Vec<T> v) {
            const Vec<T> old = load(s[r] + j), after = load(w_grad[r] + j), past = load(s_grad[r] + j);
            by_a += load(w[r] + j) * after, by_b += old * after, by_h += old * past;
            store(s_grad[r] + j, past * h + after * b + v);
        });
        weights_grad[tokens - 1] += sum<T>(by_a), surprise_grad[tokens - 1] += sum<T>(by_b), past_grad += sum<T>(by_h);
    }

    // Gradients of theta and of the limits; transposes `Forward::sizes`.
    void limited(const Trace<T>& trace, T* theta_grad) {
        reach<T>(ones, chunk.decay, chunk.eta, mixed, back);  // without the steps, which may be 0
        for (int j = 0; j < padded<T>(tokens); j += LANES<T>)
            store(step_grad + j, load(momentum_grad + j) * load(mixed[tokens - 1] + j));
        for (int t = 0; t < tokens; ++t) {
            T* here = gradient_grad[t];
            std::fill(here + t + 1, here + padded<T>(tokens), T(0));
            for (int j = 0; j <= t; j += LANES<T>)
                store(step_grad + j, load(step_grad + j) + load(here + j) * load(back[t] + j));
        }
        for (int t = 0; t < tokens; ++t) {
            rstds[t] = chunk.norm.scale ? chunk.norm.standardise(trace.products[last][t], units[t]) : 1;
            theta_grad[t] = p.limited ? step_grad[t] * trace.limits[t] : step_grad[t];
            if (p.limited) limited(t, step_grad[t] * chunk.theta[t], trace.limits[t]);
        }
    }

    void limited(int t, T limit_grad, T limit) {
        T sizes = 0, error = 0;
        for (int i = 0; i <= last; ++i) {
            const T *a = chunk.inputs[i][t], *d = chunk.deltas[i][t];
            error = dot(d, d, p.widths[i + 1]);
            sizes += dot(a, a, p.widths[i]) * error;
        }
        error = std::max(error, std::numeric_limits<T>::min());
        const T curvature = sizes / error, slope = chunk.norm.steepest * rstds[t] * rstds[t];
        if (curvature * slope < 1) return;
        const T grad = -limit_grad * limit * limit, factor = 2 * slope * grad / error;
        slope_grads[t] = grad * curvature;
        for (int i = 0; i <= last; ++i) {
            const T *a = chunk.inputs[i][t], *d = chunk.deltas[i][t];
            const T along_a = factor * dot(d, d, p.widths[i + 1]);
            const T along_d = factor * (dot(a, a, p.widths[i]) - (i == last ? curvature : 0));
            add(a, along_a, p.widths[i], input_grads[i][t]);
            add(d, along_d, p.widths[i + 1], delta_grads[i][t]);
        }
    }

    // Transpose `Chunk::coefficients`; theta is done.
    void coefficients(T* decay_grad, T* eta_grad) {
        T past = 1, a_grad = 0, b_grad = 0, h_grad = past_grad;
        for (int t = 0; t < tokens; ++t) pasts[t] = past, past *= chunk.eta[t];
        for (int j = 0; j < padded<T>(tokens); j += LANES<T>) {
            store(gradient_row + j, Vec<T>{});
            store(momentum_row + j, load(momentum_grad + j) * load(chunk.steps + j));
        }
        for (int t = tokens; t-- > 0;) {
            const T decay = chunk.decay[t], eta = chunk.eta[t];
            a_grad += weights_grad[t], b_grad += surprise_grad[t], h_grad += b_grad;
            Vec<T> by_decay = {}, by_eta = {};
            for (int j = 0; j < t; j += LANES<T>) {
                const Vec<T> g = load(gradient_row + j) + load(gradient_grad[t] + j) * load(chunk.steps + j);
                const Vec<T> m = load(momentum_row + j) + g;
                by_decay += g * load(back[t - 1] + j), by_eta += m * load(mixed[t - 1] + j);
                store(gradient_row + j, g * decay), store(momentum_row + j, m * eta);
            }
            decay_grad[t] = sum<T>(by_decay) + b_grad * (t ? chunk.surprise[t - 1] : 0);
            decay_grad[t] += a_grad * (t ? chunk.weights[t - 1] : 1);
            eta_grad[t] = sum<T>(by_eta) + h_grad * pasts[t];
            a_grad *= decay, b_grad *= decay, h_grad *= eta;
        }
    }

    // Defined in backward_errors.h.
    void errors(const Matrices<T>& w, bool apart);
    void pulled(int t, T* grad);
    void share_steepest() const;
};

}  // namespace titans

#include "backward_errors.h"
