// The associative memory over whole chunks, forward and backward, on the CPU, and the operations around it: plain C
// functions that ops/associative_memory/native.py, ops/short_conv and ops/gated_rms_norm.py call, one library, compiled
// for one type of numbers, REAL.
//
// A head's state stays in the second-level cache while one thread goes through its chunks; heads and rows of the batch
// are shared out among threads, so results do not depend on how many there are.

#include <atomic>

#include "backward.h"
#include "forward.h"
#include "short_conv.h"
#include "gated_rms_norm.h"

namespace titans {

template <class Pass> int64_t scratch_size(const Problem& p) {
    Arena<REAL> arena{nullptr};
    Pass(p, arena);
    return arena.used;
}

template <class Pass> void run(const Problem& p) {
    const int64_t heads = p.batch * p.heads, size = scratch_size<Pass>(p);
    std::atomic<int64_t> next{0};
    in_threads(p.threads, [&](int64_t thread) {
        Arena<REAL> arena{(REAL*)p.scratch + thread * size};
        Pass pass(p, arena);
        for (int64_t head; (head = next++) < heads;) pass.run(head);
    });
}

template <class Pass, class Problem> void run_forward(const Problem& p) {
    run_blocks<Pass>(p, [](Pass& pass, int64_t row, int64_t first, int64_t last) { pass.forward(row, first, last); });
}

template <class Pass, class Problem> void run_backward(const Problem& p) {
    run_blocks<Pass>(p, [](Pass& pass, int64_t row, int64_t first, int64_t last) { pass.backward(row, first, last); });
}

}  // namespace titans

using namespace titans;

#pragma GCC visibility push(default)
extern "C" {
void forward(const Problem* p) { run<Forward<REAL>>(*p); }
void backward(const Problem* p) { run<Backward<REAL>>(*p); }

void short_conv_forward(const ShortConvProblem* p) { run_forward<ShortConv<REAL>>(*p); }
void short_conv_backward(const ShortConvProblem* p) { run_backward<ShortConv<REAL>>(*p); }
void gated_rms_norm_forward(const GatedRmsNormProblem* p) { run_forward<GatedRmsNorm<REAL>>(*p); }
void gated_rms_norm_backward(const GatedRmsNormProblem* p) { run_backward<GatedRmsNorm<REAL>>(*p); }

// Elements: of scratch for one thread, of what is kept of a chunk of one head, of one head's state.
int64_t forward_scratch(const Problem* p) { return scratch_size<Forward<REAL>>(*p); }
int64_t backward_scratch(const Problem* p) { return scratch_size<Backward<REAL>>(*p); }
int64_t trace_size(const Problem* p) { return Trace<REAL>::size(*p); }
int64_t state_size(const Problem* p) { return State<REAL>::size(*p); }
}
#pragma GCC visibility pop
