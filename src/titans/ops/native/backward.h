// The backward pass of one head: group after group of chunks from the last, the states within a group made anew, then
// chunk after chunk. `x_grad` is the gradient of what is `x` in the forward pass.
#pragma once

#include "chunk.h"
#include "solve.h"

namespace titans {

template <class T> class Backward {
    const Problem& p;
    const int tokens, last;
    Chunk<T> chunk;
    std::vector<State<T>> states;  // before each chunk of a group
    State<T> state_grad;           // after the present chunk, then before it
    Matrices<T> anchor, anchor_grad;
    Matrices<T> curves;                    // second derivatives at the products, times what is pulled back
    std::vector<Features<T>> query_features;
    Matrices<T> queries;                   // each layer's input of the queries [tokens, in]
    Matrices<T> read_grads;                // gradients of their products [tokens, out]
    Matrices<T> input_grads, delta_grads, pull_grads;
    Matrices<T> turned;                    // transposed weights
    std::vector<T*> factor_grads;          // of the features, by the factors' logarithms [tokens]
    Matrix<T> y_grad, gram, mixed, back;
    Reach<T> reach_grad;
    Buffer<T> by_weights, by_surprise;
    T *momentum_grad, past_grad;
    T *step_grad, *slope_grads, *gradient_row, *momentum_row, *pasts, *rstds, *ones;
    T *scale_grad, *unit, *aims, *ahead, steepest_grad;
    Matrix<T> units;

  public:
    Backward(const Problem& p, Arena<T>& arena)
        : p(p), tokens(p.tokens), last(p.layers - 1), chunk(p, arena), state_grad(p, arena),
          y_grad(arena.matrix(tokens, p.widths[p.layers])), gram(arena.matrix(tokens, tokens)),
          mixed(arena.matrix(tokens, tokens)), back(arena.matrix(tokens, tokens)),
          reach_grad(arena, tokens), by_weights(arena, tokens, p.widest()), by_surprise(arena, tokens, p.widest()) {
        for (auto* part :
             {&momentum_grad, &step_grad, &slope_grads, &gradient_row, &momentum_row, &pasts, &rstds, &ones})
            *part = arena.row(tokens);
        for (auto* part : {&scale_grad, &unit, &aims, &ahead}) *part = arena.row(p.widths[p.layers]);
        units = arena.matrix(tokens, p.widths[p.layers]);
        for (int i = 0; i < p.layers; ++i) {
            const int in = p.widths[i], out = p.widths[i + 1];
            for (auto* part : {&anchor, &anchor_grad}) part->push_back(arena.matrix(in, out));
            input_grads.push_back(arena.matrix(tokens, in));
            for (auto* part : {&curves, &read_grads, &delta_grads, &pull_grads})
                part->push_back(arena.matrix(tokens, out));
            turned.push_back(arena.matrix(out, in));
            queries.push_back(i ? query_features[i - 1].values : chunk.q);
            if (i == last) break;
            query_features.emplace_back(arena, tokens, out);
            factor_grads.push_back(arena.row(tokens));
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
            std::fill(anchor_grad[i].data, anchor_grad[i].data + anchor_grad[i].rows * anchor_grad[i].ld, T(0));
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
            const Features<T>& features = chunk.features[i];
            features.fetch(p, trace.products[i], curves[i]);
            const Matrix<T>&delta = chunk.deltas[i], &pull = features.before_norm(p, trace.pulls[i], delta);
            each(pull, [&](int t, int j) {
                const Vec<T> u = load(pull[t] + j);
                store(delta[t] + j, u * load(features.slopes[t] + j));
                store(curves[i][t] + j, u * load(curves[i][t] + j));
            });
        }
        copy<T>(trace.pulls[last].data, trace.pulls[last].ld, chunk.deltas[last]);
        chunk.coefficients(trace.limits);
    }

    void walk(int head, int c, const State<T>& state) {
        const Trace<T> trace = Trace<T>::of(p, head, c);
        recall(head, c, trace);
        std::fill(reach_grad.weights, reach_grad.weights + tokens, T(0));
        std::fill(reach_grad.surprise, reach_grad.surprise + tokens, T(0));
        for (auto* row : {momentum_grad, slope_grads}) std::fill(row, row + padded<T>(tokens), T(0));
        past_grad = 0;
        written();
        read(head, c, state, trace);
        if (!p.online) gates(head, c, trace);  // limits depend on the errors; under the token rule errors on the gates
        errors(c ? state.weights : anchor, state, trace, c == 0);
        if (p.online) gates(head, c, trace);
        deliver(p, input_grads[0], p.k_grad, head, c);
        deliver(p, chunk.v, p.v_grad, head, c);
    }

    // Transpose what `Chunk::write` adds to the state: gradients of inputs, errors and coefficients.
    void written() {
        T* reached_grad = reach_grad.gradient[tokens - 1];  // the first layer sets, read() adds
        std::fill(reached_grad, reached_grad + padded<T>(tokens), T(0));
        for (int i = 0; i < p.layers; ++i) {
            const Matrix<T>&a = chunk.inputs[i], &delta = chunk.deltas[i];
            const Matrix<T>&w_grad = state_grad.weights[i], &s_grad = state_grad.surprise[i];
            const Matrix<T> w = by_weights.as(tokens, a.columns), s = by_surprise.as(tokens, a.columns);
            const T rate = p.rate(i);
            product<WHOLE, false>(delta, chunk.transposed(w_grad), Into<T>{w});
            product<WHOLE, false>(delta, chunk.transposed(s_grad), Into<T>{s});
            for (int t = 0; t < tokens; ++t) {
                const T reached = chunk.reached()[t] * rate, momentum = chunk.momentum[t] * rate;
                reached_grad[t] -= dot(a[t], w[t], a.columns) * rate;
                momentum_grad[t] -= dot(a[t], s[t], a.columns) * rate;
                for (int j = 0; j < a.columns; j += LANES<T>)
                    store(input_grads[i][t] + j, -(load(w[t] + j) * reached + load(s[t] + j) * momentum));
            }
            product<WHOLE, false>(chunk.scaled(a, chunk.reached()), w_grad, Into<T>{delta_grads[i], -rate});
            product<WHOLE, false>(chunk.scaled(a, chunk.momentum), s_grad, Into<T>{delta_grads[i], -rate, 1});
        }
    }

    // Defined in backward_read.h.
    void read(int head, int c, const State<T>& state, const Trace<T>& trace);
    void read_layer(int i, const State<T>& state);
    void overlap(const Matrix<T>& x, const Matrix<T>& a, const Reach<T>& reach);
    Matrix<T> mixed_back(int i, const Matrix<T>& x, const Matrix<T>& z_grad, const State<T>& state,
                         const Reach<T>& reach, const Reach<T>& grad, bool first);
    void carry_surprise(int i, const State<T>& state);

    // Defined in backward_errors.h.
    void errors(const Matrices<T>& w, const State<T>& state, const Trace<T>& trace, bool apart);
    void pulled(int t, T* grad);
    void carried_features(int i);
    void solved(const State<T>& state);
    void share_steepest() const;

    // Defined in backward_gates.h.
    void gates(int head, int c, const Trace<T>& trace);
    void steps(const Trace<T>& trace, T* theta_grad);
    void limited(int t, T limit_grad, T limit);
    void coefficients(T* decay_grad, T* eta_grad);
};

}  // namespace titans

#include "backward_errors.h"
#include "backward_gates.h"
#include "backward_read.h"
