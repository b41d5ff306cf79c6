"""The parallel form equals the token-by-token rule (outputs, state, every gradient), cut anywhere."""

import contextlib
import functools
import gc
import importlib
import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from titans.ops import AssociativeMemoryState, associative_memory, initial_state
from titans.ops.native.build import load_kernel

EXACT = 1e-11

CASES = {
    "matrix": {"depth": 1},
    "matrix-offset": {"depth": 1, "offset": 3, "residual": True, "norm": "head"},
    "two-layers": {"depth": 2},
    "published": {"depth": 2, "residual": True, "norm": "shared", "offset": 1},
    "three-layers": {"depth": 3, "activation": "silu", "norm": "head", "offset": 2},
    "four-layers": {"depth": 4, "residual": True, "norm": "shared", "chunk_size": 5},
    "relu": {"depth": 3, "activation": "relu", "residual": True},
    "one-token-chunks": {"depth": 2, "chunk_size": 1, "residual": True, "norm": "shared"},
    "one-chunk": {"depth": 2, "chunk_size": 64, "offset": 60},
    "inside-one-chunk": {"depth": 2, "chunk_size": 64, "offset": 7},
    "channels": {"depth": 2, "hidden": 8, "channels": 4, "norm": "head", "offset": 3},
    "two-channels": {"depth": 3, "hidden": 6, "channels": 2, "residual": True},
    "masked": {"depth": 2, "masked": True, "norm": "shared", "residual": True},
    "masked-offset": {"depth": 3, "masked": True, "offset": 3},
    "masked-channels": {"depth": 1, "masked": True, "offset": 2, "channels": 4},
    "limited": {"depth": 2, "residual": True, "norm": "shared", "offset": 1, "limited": True},
    "limited-matrix": {"depth": 1, "norm": "head", "masked": True, "limited": True},
    "limited-plain": {"depth": 4, "channels": 1, "offset": 2, "limited": True},
    "token": {"rule": "token", "depth": 1},
    "token-residual": {"rule": "token", "depth": 1, "residual": True, "chunk_size": 5},
    "token-channels": {"rule": "token", "depth": 1, "channels": 4},
    "token-two-channels": {"rule": "token", "depth": 1, "channels": 2, "masked": True},
    "token-masked": {"rule": "token", "depth": 1, "masked": True},
    "token-one": {"rule": "token", "depth": 1, "chunk_size": 1},
    "features": {"depth": 3, "feature_norm": True, "norm": "head", "residual": True, "offset": 1},
    "token-two-layers": {"rule": "token", "depth": 2, "hidden": 6, "offset": 2},
    "token-features": {"rule": "token", "depth": 2, "hidden": 6, "feature_norm": True, "residual": True, "offset": 3},
    "token-slower": {"rule": "token", "depth": 3, "hidden": 6, "feature_norm": True, "hidden_lr": 0.3, "masked": True},
    "token-deep-channels": {"rule": "token", "depth": 2, "hidden": 8, "feature_norm": True, "channels": 2, "offset": 1},
}
cases = pytest.mark.parametrize("options", CASES.values(), ids=CASES)

CHUNK = importlib.import_module("titans.ops.associative_memory.chunk")
MODULES = {
    name: importlib.import_module(f"titans.ops.associative_memory.{name}") for name in ("native", "manual_backward")
}


@pytest.fixture(scope="module", params=["native", "manual_backward", "chunk"])
def backend(request):
    """What runs the chunks, from one on."""
    if request.param == "native" and load_kernel("double") is None:
        pytest.skip("no C++ compiler that the native kernel could be made with")
    return request.param


@pytest.fixture(scope="module")
def make_case(make_case, backend):
    """Make the inputs of one call of a backend: see `Case`."""
    return functools.partial(make_case, backend=backend)


@st.composite
def options(draw, **fixed):
    """Any legal combination of shapes and options."""
    rule = draw(st.sampled_from(("chunk", "chunk", "token")))
    depth = draw(st.integers(1, 4))
    chunk_size = draw(st.integers(1, 6))
    hidden_lr = draw(st.sampled_from((0.0, 0.5, 1.0))) if rule == "token" else 1.0
    anchored = rule == "chunk" or (depth > 1 and hidden_lr > 0)
    return {
        "rule": rule,
        "depth": depth,
        "chunk_size": chunk_size,
        "batch": draw(st.integers(1, 3)),
        "heads": draw(st.integers(1, 2)),
        "tokens": draw(st.integers(1, 14)),
        "width": 4,
        "hidden": draw(st.sampled_from((4, 8))),
        "offset": draw(st.integers(0, chunk_size - 1)) if anchored else 0,
        "activation": draw(st.sampled_from(("gelu", "silu", "relu"))),
        "residual": draw(st.booleans()),
        "norm": None if rule == "token" else draw(st.sampled_from((None, "shared", "head"))),
        "channels": draw(st.sampled_from((None, 2, 4))),
        "masked": draw(st.booleans()),
        "feature_norm": draw(st.booleans()),
        "hidden_lr": hidden_lr,
        "limited": rule == "chunk" and depth > 1 and draw(st.booleans()),  # a kink for a matrix and a unit key
        "seed": draw(st.integers(0, 9)),
        **fixed,
    }


# The reference ---------------------------------------------------------------------------------------------


@cases
def test_chunk_equals_naive(make_case, close, options):
    case = make_case(**options)
    close(case.gradients(), case.gradients(backend="naive"), EXACT)


@settings(max_examples=25)
@given(options())
def test_chunk_equals_naive_for_any_shapes(make_case, close, options):
    case = make_case(**options)
    # Features that are nearly alike lose digits when they are centred, in either form.
    close(case.gradients(), case.gradients(backend="naive"), 1e-9 if options["feature_norm"] else EXACT)


@pytest.mark.parametrize(
    "name", ["published", "four-layers", "masked-offset", "channels", "limited", "token", "token-channels"]
)
def test_float32_is_close_to_the_float64_reference(make_case, close, name):
    # Smaller steps than elsewhere, since large ones make the numbers themselves sensitive to rounding.
    options = {**CASES[name], "hidden": 16, "width": 8, "step": 0.05}
    single = make_case(**options, dtype=torch.float32).gradients()
    double = make_case(**options).gradients(backend="naive")
    assert single[0].dtype == torch.float32
    assert {x.dtype for x in single[1].tensors() if x.is_floating_point()} == {torch.float32}
    close(single, double, 1e-4)


@pytest.mark.parametrize(("rule", "depth"), [("chunk", 2), ("token", 1), ("token", 2)])
@pytest.mark.parametrize("gates", [{"alpha": 0}, {"alpha": 1}, {"eta": 0}, {"eta": 1}, {"theta": 0},
                                   {"alpha": 0, "eta": 0}, {"alpha": 1, "eta": 0}, {"alpha": 0, "eta": 1},
                                   {"alpha": 1, "eta": 1}], ids=str)  # fmt: skip
def test_gates_of_exactly_0_and_1(make_case, close, rule, depth, gates):
    """Their gradients too: a coefficient that is 0 may still have a slope."""
    case = make_case(rule=rule, depth=depth, offset=depth - 1, norm=None)
    for name, value in gates.items():
        case.inputs[name] = torch.full_like(case.inputs[name], value)
    close(case.gradients(), case.gradients(backend="naive"), EXACT)


@given(st.integers(0, 2**16), st.sampled_from((("chunk", 2), ("token", 1), ("token", 2))), st.sampled_from((None, 2)))
def test_gates_of_0_and_1_here_and_there(make_case, close, seed, rule, channels):
    case = make_case(rule=rule[0], depth=rule[1], hidden=4, channels=channels)
    generator = torch.Generator().manual_seed(seed)
    for name in ("theta", "alpha", "eta"):
        gate = case.inputs[name]
        kind = torch.randint(0, 3, gate.shape, generator=generator)
        case.inputs[name] = torch.where(kind == 0, 0.0, torch.where(kind == 1, 1.0, gate))
    close(case.gradients(), case.gradients(backend="naive"), EXACT)


def test_gates_near_0_and_1_lose_no_precision(make_case, close):
    """Products of many tiny factors must not be differences of large logarithms."""
    case = make_case(tokens=40, chunk_size=40, depth=1)
    case.inputs["alpha"][:] = 1 - 1e-9
    case.inputs["eta"][:] = 1e-9
    close(case.gradients(), case.gradients(backend="naive"), EXACT)


@pytest.mark.parametrize("name", ["published", "limited", "token", "token-two-layers"])
def test_second_derivatives(make_case, name):
    """The op is differentiable twice: outer loops may themselves be trained through."""
    case = make_case(**{**CASES[name], "batch": 1, "heads": 1, "tokens": 4, "width": 2, "hidden": 2, "chunk_size": 3})
    flat = torch.utils._pytree.tree_leaves(case.leaves())

    def run(*_):
        y, state = case.run()
        return y, state.weights[0], state.surprise[-1]

    assert torch.autograd.gradgradcheck(run, flat, fast_mode=True)


# Independent recurrences -----------------------------------------------------------------------------------


def gated_delta_rule(q, k, v, beta, alpha, state):
    """Plain loops, row vectors: the error is read before the decay."""
    outputs = []
    for t in range(q.shape[1]):
        query, key, value = (x[:, t].unsqueeze(-2) for x in (q, k, v))
        step, keep = beta[:, t, :, None, None], 1 - alpha[:, t]
        keep = keep[:, :, None, None] if keep.dim() == 2 else keep.unsqueeze(-2)
        state = keep * state - step * key.mT @ (key @ state - value)
        outputs.append((query @ state).squeeze(-2))
    return torch.stack(outputs, 1), state


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-4)])
@pytest.mark.parametrize("forget", ["none", "scalar", "channelwise"])
def test_without_momentum_the_token_rule_is_the_delta_rule(make_case, close, forget, dtype, tolerance):
    case = make_case(rule="token", depth=1, tokens=50, chunk_size=16, channels=4 if forget == "channelwise" else None)
    beta = torch.rand(2, 50, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    alpha = torch.zeros(2, 50, 2, dtype=torch.float64) if forget == "none" else case.inputs["alpha"]
    start = case.state.weights[0]
    case.inputs |= {"theta": beta / 2, "alpha": alpha, "eta": torch.zeros_like(beta)}
    case.state = initial_state([start])
    expected = gated_delta_rule(case.inputs["q"], case.inputs["k"], case.inputs["v"], beta, alpha, start)
    y, state = case.to(dtype).run()
    close((y, state.weights[0]), expected, tolerance)


@pytest.mark.parametrize("limited", [False, True])
def test_the_online_rule_written_out(make_case, close, limited):
    """Two layers, residual and norm, momentum and decay, by hand-made loops that share nothing with the package."""
    case = make_case(batch=1, heads=1, tokens=11, chunk_size=4, residual=True, norm="shared", limited=limited)
    q, k, v, theta, alpha, eta = (x[0, :, 0] for x in case.inputs.values())
    scale = case.norm_weight

    def network(w1, w2, x):
        z = torch.nn.functional.gelu(x @ w1) @ w2
        return x + torch.nn.functional.layer_norm(z, z.shape, eps=1e-6) * scale

    def curvature(w1, w2, x, gradient, target):
        """How much of what the norm can still turn of the error one step of size 1/2 corrects."""
        z = (torch.nn.functional.gelu(x @ w1) @ w2).detach().requires_grad_()
        found = x + torch.nn.functional.layer_norm(z, z.shape, eps=1e-6) * scale
        (at_z,) = torch.autograd.grad((found - target).square().sum(), z)
        at_normed = at_z * (z.var(unbiased=False) + 1e-6).sqrt()
        return scale.abs().max() ** 2 * sum(g.square().sum() for g in gradient) / at_normed.square().sum()

    limits = []
    w = [x[0, 0] for x in case.state.weights]
    s = [torch.zeros_like(x) for x in w]
    expected = []
    for t in range(11):
        if t % 4 == 0:
            anchor = w
        ws = [x.clone().requires_grad_() for x in anchor]
        gradient = torch.autograd.grad((network(*ws, k[t]) - v[t]).square().sum(), ws)
        limits.append(1 / curvature(*ws, k[t], gradient, v[t]).clamp(min=1) if limited else 1)
        s = [eta[t] * a - limits[-1] * theta[t] * g for a, g in zip(s, gradient, strict=True)]
        w = [(1 - alpha[t]) * a + b for a, b in zip(w, s, strict=True)]
        expected.append(network(*w, q[t]))
    assert not limited or min(limits) < 0.5
    for changes in ({}, {"backend": "naive"}):
        y, state = case.run(state=initial_state(case.state.weights), **changes)
        close(y[0, :, 0], torch.stack(expected), 1e-12)
        close([x[0, 0] for x in state.weights], w, 1e-12)
        close([x[0, 0] for x in state.surprise], s, 1e-12)


def test_token_rule_is_the_chunk_rule_with_chunks_of_one(make_case, close):
    case = make_case(depth=1, chunk_size=1, residual=True)
    case.state = initial_state(case.state.weights)
    y, state = case.run()
    for chunk_size in (1, 3, 5, 64):  # under the token rule, a matter of speed only
        other, final = case.run(rule="token", chunk_size=chunk_size)
        close((other, final.weights, final.surprise), (y, state.weights, state.surprise), 1e-12)


def test_limited_steps_of_a_matrix_memory_divide_by_the_square_of_a_long_key(make_case, close):
    case = make_case(depth=1, residual=True)
    length = torch.linspace(0.5, 3, 13, dtype=torch.float64).unsqueeze(-1)
    case.inputs["k"] = case.inputs["k"] * length.unsqueeze(-1)
    limited = case.run(limit_steps=True)
    close(limited, case.run(theta=case.inputs["theta"] / length.clamp(min=1).square()), 1e-12)
    assert (limited[0] - case.run()[0]).abs().max() > 0.1


def test_chunk_size_matters_under_the_chunk_rule(make_case):
    case = make_case(depth=1)
    assert not torch.allclose(case.run(chunk_size=4)[0], case.run(chunk_size=5)[0])


# One stream, cut anywhere ----------------------------------------------------------------------------------


@settings(max_examples=30)
@given(options(), st.lists(st.integers(1, 5), min_size=1, max_size=5))
def test_any_split_equals_one_call(make_case, close, stream, options, lengths):
    options = {**options, "tokens": sum(lengths)}
    case = make_case(**options)
    whole = case.run()
    for pieces in (lengths, [1] * sum(lengths)):
        close(stream(case.run, pieces), whole, 1e-12)


@given(options(masked=True, batch=3))
def test_padding_anywhere_is_a_no_op(make_case, close, same, options):
    """Every row equals the call on its tokens alone, whatever stands at the padding."""
    case = make_case(**options)
    y, state = case.run()
    assert not y.isnan().any()
    assert (y[~case.mask] == 0).all()
    garbage = {name: torch.where(case.mask.view(3, -1, *[1] * (x.dim() - 2)), x, torch.nan)
               for name, x in case.inputs.items()}  # fmt: skip
    same(case.run(**garbage), (y, state))
    for row in range(3):
        here = case.mask[row]
        start = case.state.select(torch.tensor([row]))
        if not here.any():
            close(state.select(torch.tensor([row])), start, 0.0)
            continue
        alone = {name: x[row : row + 1, here] for name, x in case.inputs.items()}
        expected, final = associative_memory(**alone, state=start, norm_weight=case.norm_weight, **case.options)
        close(y[row : row + 1, here], expected, 1e-12)
        close(state.select(torch.tensor([row])), final, 1e-12)


def test_ragged_rows_go_on(make_case, close):
    """After pieces of different lengths the rows stand at different places of their chunks."""
    case = make_case(batch=3, tokens=21, chunk_size=4)
    lengths = [[3, 5, 2, 1], [1, 0, 6, 1], [7, 2, 2, 1]]
    state, read, outputs = initial_state(case.state.weights), [0, 0, 0], [[], [], []]
    for piece in range(4):
        size = max(row[piece] for row in lengths)
        mask = torch.zeros(3, size, dtype=torch.bool)
        inputs = {name: torch.zeros(3, size, *x.shape[2:], dtype=x.dtype) for name, x in case.inputs.items()}
        for row in range(3):
            n = lengths[row][piece]
            mask[row, size - n :] = True  # padding on the left
            for name, x in case.inputs.items():
                inputs[name][row, size - n :] = x[row, read[row] : read[row] + n]
            read[row] += n
        y, state = associative_memory(**inputs, state=state, mask=None if mask.all() else mask, **case.options)
        for row in range(3):
            outputs[row].append(y[row, mask[row]])
    assert torch.equal(state.offset, torch.tensor(read) % 4)
    for row in range(3):
        start = initial_state(case.state.weights).select(torch.tensor([row]))
        expected, final = case.run(0, read[row], start, rows=slice(row, row + 1))
        close(torch.cat(outputs[row]), expected[0], 1e-12)
        close(state.select(torch.tensor([row])), final, 1e-12)


@cases
def test_causal(make_case, same, options):
    """A changed token changes nothing before it, exactly, and its own output and the state after it."""
    case = make_case(**{**options, "masked": False})
    y, state = case.run()
    for p in (0, 3, 4, 9):
        for name, x in case.inputs.items():
            other = x.clone()
            other[:, p] = other[:, p] * 0.5 + 0.1
            changed, final = case.run(**{name: other})
            same(changed[:, :p], y[:, :p], name)
            assert (changed[:, p] != y[:, p]).any(), f"{name} at {p} does nothing"
            if name == "q":
                same(final, state)
                same(changed[:, p + 1 :], y[:, p + 1 :])
            else:
                for t in range(p + 1, y.shape[1]):
                    assert (changed[:, t] != y[:, t]).any(), f"{name} at {p} is forgotten at {t}"
                assert not torch.equal(final.weights[0], state.weights[0])


@cases
def test_rows_and_heads_are_independent(make_case, same, options):
    case = make_case(**options)
    y, state = case.run()
    changed, final = case.run(**{name: torch.cat([x[:1], x[1:] * 0.5]) for name, x in case.inputs.items()})
    same((changed[:1], final.select(torch.tensor([0]))), (y[:1], state.select(torch.tensor([0]))))
    changed, _ = case.run(**{name: torch.cat([x[:, :, :1], x[:, :, 1:] * 0.5], 2) for name, x in case.inputs.items()})
    same(changed[:, :, :1], y[:, :, :1])
    assert not torch.equal(changed[:, :, 1:], y[:, :, 1:])


@cases
def test_the_input_state_is_not_modified(make_case, same, options):
    case = make_case(**options)
    before = case.state.clone()
    first = case.run()
    same(case.state, before)
    same(case.run(), first)


def test_unbatched_weights_serve_all_rows(make_case, close):
    case = make_case()
    weights = [w[0] for w in case.state.weights]
    one = case.run(state=initial_state(weights))
    close(one, case.run(state=initial_state([w.expand(2, -1, -1, -1) for w in weights])), 0.0)
    close(one, case.run(state=initial_state(weights, batch_size=2)), 0.0)


# Surprise --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["published", "three-layers", "masked-offset", "features", "token", "token-channels",
                                  "token-features", "token-slower"])  # fmt: skip
def test_surprise_is_the_gradient_norm(make_case, close, name):
    case = make_case(**CASES[name])
    y, state, surprise = case.run(return_surprise=True)
    close((y, state), case.run(), 0.0)
    *_, expected = case.run(return_surprise=True, backend="naive")
    close(surprise, expected, EXACT)
    assert (surprise > 0).any()
    assert not surprise.requires_grad


def test_surprise_of_a_matrix_written_out(make_case, close):
    """||grad ||kW - v||^2|| = 2 |k| |kW - v|."""
    case = make_case(depth=1, tokens=1)
    *_, surprise = case.run(return_surprise=True)
    k, v = case.inputs["k"], case.inputs["v"]
    expected = 2 * k.norm(dim=-1) * (torch.einsum("bthi,bhio->btho", k, case.state.anchor[0]) - v).norm(dim=-1)
    close(surprise, expected, 1e-12)


# Memory and precision --------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [
    {"chunk_size": 4, "depth": 2, "offset": 3, "channels": 2, "hidden": 4},
    {"chunk_size": 4, "depth": 1, "rule": "token"},
], ids=["chunk", "token"])  # fmt: skip
def test_recomputation_changes_no_gradient(make_case, close, monkeypatch, options):
    case = make_case(tokens=170, **options)
    recomputed = case.gradients()
    monkeypatch.setattr(CHUNK, "group_size", lambda chunks: chunks)
    close(recomputed, case.gradients(), 1e-12)


@pytest.mark.parametrize("limited", [False, True])
@pytest.mark.parametrize("group", [1, 8, 12])
def test_groups_change_no_gradient(make_case, close, monkeypatch, group, limited, backend):
    """The written-out derivative, in groups of 1, 2 and 3 chunks; the last one is smaller."""
    if backend == "chunk":
        pytest.skip("autograd has groups of its own: the test above")
    case = make_case(tokens=35, chunk_size=4, residual=True, norm="head", limited=limited, offset=1, step=0.05)
    whole = case.gradients()
    close(whole, case.gradients(backend="naive"), EXACT)
    monkeypatch.setattr(MODULES[backend], "GROUP", group)
    close(case.gradients(), whole, 1e-12)


def live_bytes():
    """Bytes of all tensors that anything holds on to."""
    gc.collect()
    storages = {}
    for x in gc.get_objects():
        if type(x) is torch.Tensor and x.device.type == "cpu":
            with contextlib.suppress(RuntimeError):  # torch.compile in another test leaves tensors without memory
                storages[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
    return sum(storages.values())


def kept_bytes(make_case, chunks, **options):
    """Bytes that one call on so many chunks keeps for its backward, and the bytes of one state."""
    case = make_case(
        batch=1, heads=1, width=16, hidden=64, tokens=2 * chunks, chunk_size=2, dtype=torch.float32, **options
    )
    case.leaves()
    before = live_bytes()
    with torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x):  # makes saved tensors Python objects
        result = case.run()
    kept = live_bytes() - before
    assert result[0].requires_grad
    return kept, case.state.nbytes


@pytest.mark.slow
def test_training_memory_by_autograd_grows_far_slower_than_a_state_per_chunk(make_case, monkeypatch):
    short, state = kept_bytes(make_case, 64, channels=2)
    long, _ = kept_bytes(make_case, 576, channels=2)
    assert 12 * state < long < 576 * state / 10
    assert long < 9 * short / 2  # 9 times the tokens, 3 times the states
    monkeypatch.setattr(CHUNK, "group_size", lambda chunks: chunks)
    # Without recomputation the measure sees every state.
    assert kept_bytes(make_case, 64, channels=2)[0] > 64 * state / 2


@pytest.mark.slow
@pytest.mark.parametrize("rule", [{}, {"rule": "token", "feature_norm": True}], ids=["chunk", "token"])
def test_training_memory_keeps_a_state_per_group_only(make_case, monkeypatch, backend, rule):
    if backend == "chunk" or (rule and backend == "manual_backward"):
        pytest.skip("by autograd: the test above")

    def per_chunk():
        return (kept_bytes(make_case, 1536, **rule)[0] - kept_bytes(make_case, 512, **rule)[0]) / 1024

    _, state = kept_bytes(make_case, 1, **rule)
    assert per_chunk() < state / 6  # what is kept of two tokens, and a 512th of a state
    monkeypatch.setattr(MODULES[backend], "GROUP", 2)
    assert per_chunk() > state / 2  # a group of one chunk: the measure sees every state


@pytest.mark.slow
def test_backward_frees_what_was_kept(make_case, backend):
    if backend == "chunk":
        pytest.skip("autograd frees by itself")
    case = make_case(batch=1, heads=1, width=16, hidden=64, tokens=512, chunk_size=8, dtype=torch.float32, limited=True)
    leaves = case.leaves()
    before = live_bytes()
    with torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x):
        y, state = case.run()
    kept = live_bytes() - before
    gradients = torch.autograd.grad(y.sum(), case.inputs["q"])
    assert live_bytes() - before < kept / 4  # what is returned: y, its gradient, the state
    assert leaves
    assert gradients[0].isfinite().all()
    assert all(t.is_contiguous() for t in state.tensors())
    assert len({t.untyped_storage().data_ptr() for t in state.weights + state.surprise}) == 4


def test_half_precision_inputs_leave_the_state_in_float32(make_case, close):
    case = make_case(dtype=torch.float32, norm="shared", residual=True)
    half = {name: x.bfloat16() for name, x in case.inputs.items()}
    y, state = case.run(**half)
    assert y.dtype == torch.bfloat16
    assert {x.dtype for x in state.tensors()} == {torch.float32}
    expected, final = case.run(**{name: x.float() for name, x in half.items()})
    close(state, final, 0.0)
    close(y, expected, 0.01)
    expected = case.run()
    with torch.autocast("cpu", torch.bfloat16):
        close(case.run(), expected, 0.0)


def test_half_precision_weights_are_widened():
    state = initial_state([torch.randn(2, 4, 4).bfloat16()])
    assert state.weights[0].dtype == state.surprise[0].dtype == torch.float32


# Bad input -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("change", [
    ("q", lambda x: x[:, :, :, :3], "q has shape"),
    ("q", lambda x: x[0], "q has shape"),
    ("q", lambda x: x[:, :, :1], "q has shape"),
    ("k", lambda x: x[:, :-1], "k has shape"),
    ("k", lambda x: x[:1], "k has shape"),
    ("v", lambda x: x[..., :-1], "v has shape"),
    ("theta", lambda x: x.unsqueeze(-1), "theta has shape"),
    ("theta", lambda x: x[:, :-1], "theta has shape"),
    ("eta", lambda x: x[:, :1], "eta has shape"),
    ("alpha", lambda x: x[..., :1].squeeze(-1), "alpha has shape"),
    ("alpha", lambda x: x[..., None, None].expand(-1, -1, -1, 2, 2), "alpha has shape"),
    ("alpha", lambda x: x.unsqueeze(-1).expand(-1, -1, -1, 3), "alpha has 3 channels"),
])  # fmt: skip
def test_wrong_shapes(make_case, change):
    name, spoil, message = change
    case = make_case()
    case.inputs[name] = spoil(case.inputs[name])
    with pytest.raises(ValueError, match=message):
        associative_memory(**case.inputs, state=case.state, **case.options)


@pytest.mark.parametrize(("changes", "message"), [
    ({"chunk_size": 0}, "chunk_size=0"),
    ({"chunk_size": -3}, "chunk_size=-3"),
    ({"rule": "online"}, "rule='online'"),
    ({"activation": "tanh"}, "activation='tanh'"),
    ({"backend": "magic"}, "backend='magic'"),
    ({"hidden_lr": 0.5}, "hidden_lr=0.5 needs rule"),
    ({"rule": "token", "hidden_lr": -1.0}, "hidden_lr=-1.0"),
    ({"norm_weight": torch.ones(3)}, "norm_weight has shape"),
    ({"norm_weight": torch.ones(3, 4)}, "norm_weight has shape"),
    ({"mask": torch.ones(2, 13)}, "mask has dtype"),
    ({"mask": torch.ones(2, 12, dtype=torch.bool)}, "mask has shape"),
    ({"mask": torch.ones(13, dtype=torch.bool)}, "mask has shape"),
])  # fmt: skip
def test_wrong_options(make_case, changes, message):
    case = make_case()
    with pytest.raises(ValueError, match=message):
        associative_memory(**case.inputs, state=case.state, **{**case.options, **changes})


def test_token_rule_refuses_a_norm(make_case):
    case = make_case(rule="token", depth=1, norm="shared")
    with pytest.raises(ValueError, match="norm_weight=None"):
        case.run()


def test_no_tokens(make_case):
    with pytest.raises(ValueError, match="no tokens"):
        make_case().run(0, 0)


@pytest.mark.parametrize("widths", [(4, 5), (5, 1), (4, 6, 5), (5, 6, 4)])
@pytest.mark.parametrize("rule", [{}, {"limited": True}, {"rule": "token"}], ids=["chunk", "limited", "token"])
def test_inputs_and_outputs_of_different_width(make_case, close, widths, rule):
    case = make_case(width=widths[0], depth=len(widths) - 1, **rule)
    generator = torch.Generator().manual_seed(5)
    shapes = [(2, 2, i, o) for i, o in itertools.pairwise(widths)]
    weights, surprise, anchor = (
        [torch.randn(s, generator=generator, dtype=torch.float64) / 2 for s in shapes] for _ in range(3)
    )
    case.state = AssociativeMemoryState(weights, surprise, anchor if case.anchored else weights, 0)
    case.inputs["v"] = torch.randn(2, 13, 2, widths[-1], generator=generator, dtype=torch.float64)
    case.inputs["k"] *= 1.5  # for a matrix and a unit key the limit has a kink
    close(case.gradients(), case.gradients(backend="naive"), EXACT)


@pytest.mark.parametrize("options", [{"norm": "head", "residual": True}, {}], ids=["norm", "plain"])
def test_limits_where_nothing_is_wrong(make_case, close, options):
    """A token that the memory predicts exactly has no error, so no curvature along it."""
    case = make_case(depth=1, limited=True, **options)
    empty = [torch.zeros_like(w) for w in case.state.weights]
    case.state = initial_state(empty)
    case.inputs["k"] *= 2
    case.inputs["v"] = case.inputs["k"].clone() if options else torch.zeros_like(case.inputs["v"])
    close(case.gradients(), case.gradients(backend="naive"), EXACT)


def test_residual_needs_equal_widths(make_case):
    case = make_case(depth=1)
    case.inputs["v"] = case.inputs["v"][..., :3]
    case.state = initial_state([case.state.weights[0][..., :3]])
    case.run()
    with pytest.raises(ValueError, match="residual=True"):
        case.run(residual=True)


def test_state_of_another_configuration(make_case):
    case = make_case()
    with pytest.raises(ValueError, match="from q and the state"):
        case.run(state=make_case(width=3).state)
    with pytest.raises(ValueError, match="state holds 3 rows"):
        case.run(state=make_case(batch=3).state)
    with pytest.raises(ValueError, match="chunk_size=4"):
        case.run(state=make_case(offset=5).state)
    state = make_case().state
    with pytest.raises(ValueError, match="chunk_size=4"):
        case.run(state=AssociativeMemoryState(state.weights, state.surprise, state.anchor, torch.tensor([0, 50])))


@pytest.mark.parametrize(("weights", "message"), [
    ([], "weights is empty"),
    ([torch.ones(4, 4)], r"weights\[0\] has shape"),
    ([torch.ones(2, 4, 5), torch.ones(2, 4, 5)], r"does not feed weights\[1\]"),
    ([torch.ones(2, 4, 5), torch.ones(3, 5, 4)], r"does not feed weights\[1\]"),
])  # fmt: skip
def test_weights_that_make_no_network(weights, message):
    with pytest.raises(ValueError, match=message):
        initial_state(weights)


def test_batch_size_that_does_not_fit_the_weights():
    with pytest.raises(ValueError, match="batch_size=3"):
        initial_state([torch.ones(2, 1, 4, 4)], batch_size=3)
