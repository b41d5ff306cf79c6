"""The chunked linear recurrences equal the token-by-token ones, cut anywhere, and the published special cases."""

import importlib

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.invariants import PROPERTIES, VOCABULARY, of_op
from titans.ops import associative_memory, initial_state
from titans.ops.gated_delta_rule import GatedDeltaRuleState, gated_delta_rule

EXACT = 1e-11
NAMES = ("q", "k", "v", "log_decay", "beta")
RULES = {  # whether it has a decay a head or a channel, and the delta rule
    "linear-attention": (None, False),
    "retention": ("head", False),
    "gated-linear-attention": ("channel", False),
    "delta-net": (None, True),
    "gated-delta-net": ("head", True),
    "channelwise-delta": ("channel", True),
}


class Case:
    """Inputs and state of one call, in mid-stream."""

    def __init__(self, decay="head", delta=True, *, batch=2, tokens=13, heads=2, width=4, out=3, chunk_size=4,
                 strength=1.0, masked=False, seed=0, dtype=torch.float64):  # fmt: skip
        generator = torch.Generator().manual_seed(seed)

        def normal(*shape):
            return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)

        gates, channels = (batch, tokens, heads), () if decay == "head" else (width,)
        self.inputs = {
            "q": normal(*gates, width),
            "k": F.normalize(normal(*gates, width), dim=-1),
            "v": normal(*gates, out),
            "log_decay": None if decay is None else strength * F.logsigmoid(normal(*gates, *channels)),
            "beta": normal(*gates).sigmoid() if delta else None,
        }
        self.state = GatedDeltaRuleState(normal(batch, heads, width, out))
        self.mask = torch.rand(batch, tokens, generator=generator) < 0.7 if masked else None
        self.chunk_size = chunk_size

    def run(self, start=0, stop=None, state=None, **changes):
        """Call the op on a stretch of the tokens."""
        inputs = [None if x is None else x[:, start:stop] for x in self.inputs.values()]
        mask = None if self.mask is None else self.mask[:, start:stop]
        options = {"chunk_size": self.chunk_size, "mask": mask, **changes}
        return gated_delta_rule(*inputs, self.state if state is None else state, **options)

    def gradients(self, **changes):
        """Outputs, final state, and the gradients of a random function of both with respect to every input."""
        self.inputs = {n: x if x is None else x.detach().requires_grad_() for n, x in self.inputs.items()}
        self.state = self.state.map(lambda x: x.detach().requires_grad_())
        leaves = {n: x for n, x in self.inputs.items() if x is not None} | {"state": self.state.matrix}
        y, state = self.run(**changes)
        generator = torch.Generator().manual_seed(99)
        total = sum((x * torch.randn(x.shape, generator=generator, dtype=torch.float64)).sum()
                    for x in (y, state.matrix))  # fmt: skip
        found = torch.autograd.grad(total, tuple(leaves.values()))
        return y.detach(), state.detach(), dict(zip(leaves, found, strict=True))


@pytest.fixture(params=RULES)
def rule(request):
    return RULES[request.param]


@st.composite
def cases(draw):
    decay, delta = draw(st.sampled_from(list(RULES.values())))
    return Case(
        decay,
        delta,
        batch=draw(st.integers(1, 3)),
        tokens=draw(st.integers(1, 20)),
        heads=draw(st.integers(1, 2)),
        width=draw(st.integers(1, 4)),
        out=draw(st.integers(1, 4)),
        chunk_size=draw(st.integers(1, 24)),
        masked=draw(st.booleans()),
        seed=draw(st.integers(0, 9)),
    )


# The reference ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tokens", [1, 4, 13])
@pytest.mark.parametrize("chunk_size", [1, 4, 9, 64])
def test_chunked_equals_reference(close, rule, tokens, chunk_size):
    case = Case(*rule, tokens=tokens, chunk_size=chunk_size, masked=tokens == 13)
    close(case.gradients(), case.gradients(backend="naive"), EXACT)


@settings(max_examples=40)
@given(cases())
def test_chunked_equals_reference_for_any_shapes(close, case):
    close(case.gradients(), case.gradients(backend="naive"), EXACT)


def test_long_streams_recompute_and_equal_the_reference(close, rule):
    case = Case(*rule, tokens=70, chunk_size=3)
    close(case.gradients(), case.gradients(backend="naive"), 1e-10)


def test_the_reference_is_the_recurrence(close, rule):
    """Written a second time, head by head in NumPy."""
    case = Case(*rule, tokens=7, masked=True)
    y, state = case.run(backend="naive")
    q, k, v = (case.inputs[n].numpy() for n in "qkv")
    decay = np.ones_like(q[..., 0]) if case.inputs["log_decay"] is None else np.exp(case.inputs["log_decay"].numpy())
    for b in range(2):
        for h in range(2):
            s = case.state.matrix[b, h].numpy()
            for t in range(7):
                if not case.mask[b, t]:
                    assert (y[b, t, h] == 0).all()
                    continue
                s = np.diag(np.broadcast_to(decay[b, t, h], 4)) @ s
                if case.inputs["beta"] is None:
                    s = s + np.outer(k[b, t, h], v[b, t, h])
                else:  # (I - beta k k') S + beta k v'
                    step = float(case.inputs["beta"][b, t, h])
                    s = (np.eye(4) - step * np.outer(k[b, t, h], k[b, t, h])) @ s + step * np.outer(
                        k[b, t, h], v[b, t, h]
                    )
                close(y[b, t, h], torch.from_numpy(q[b, t, h] @ s), EXACT)
            close(state.matrix[b, h], torch.from_numpy(s), EXACT)


def test_derivatives_are_right(rule):
    case = Case(*rule, batch=1, tokens=3, heads=1, width=2, out=1, chunk_size=2)
    inputs = [x for x in case.inputs.values() if x is not None] + [case.state.matrix]

    def run(*tensors):
        given = iter(tensors)
        found = [None if x is None else next(given) for x in case.inputs.values()]
        y, state = gated_delta_rule(*found, GatedDeltaRuleState(next(given)), chunk_size=2)
        return y, state.matrix

    inputs = [x.requires_grad_() for x in inputs]
    assert torch.autograd.gradcheck(run, inputs)
    assert torch.autograd.gradgradcheck(run, inputs)


# One stream ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("check", PROPERTIES.values(), ids=PROPERTIES)
@pytest.mark.parametrize("backend", ["chunk", "naive"])
def test_invariants(rule, backend, check):
    case = Case(*rule, batch=1, tokens=VOCABULARY)
    absent = {name: None for name, x in case.inputs.items() if x is None}

    def run(inputs, state, mask):
        return gated_delta_rule(**inputs, **absent, state=state, mask=mask, chunk_size=4, backend=backend)

    check(of_op(run, {name: x for name, x in case.inputs.items() if x is not None}, case.state))


def test_no_state_is_an_empty_one(same, close, rule):
    case = Case(*rule)
    inputs, empty = list(case.inputs.values()), torch.zeros(1, 2, 4, 3, dtype=torch.float64)
    same(gated_delta_rule(*inputs), gated_delta_rule(*inputs, GatedDeltaRuleState(empty)))


# Numbers ---------------------------------------------------------------------------------------------------


@given(st.integers(0, 2**16), st.sampled_from([r for r in RULES.values() if r[0] is not None]))
def test_decays_of_exactly_0_and_1(close, seed, rule):
    """Their gradients too: finite and equal, and what lies before a decay of 0 is forgotten exactly."""
    case = Case(*rule, tokens=14, chunk_size=9)
    gate = case.inputs["log_decay"]
    kind = torch.randint(0, 4, gate.shape, generator=torch.Generator().manual_seed(seed))
    case.inputs["log_decay"] = torch.where(kind == 0, -torch.inf, torch.where(kind == 1, 0.0, gate))
    close(case.gradients(), case.gradients(backend="naive"), EXACT)


def test_a_decay_of_0_forgets_exactly(same):
    for rule in (("head", False), ("channel", False), ("head", True)):
        case, other = Case(*rule, chunk_size=9), Case(*rule, chunk_size=9)
        other.inputs["v"][:, :5] += 3
        for c in (case, other):
            c.inputs["log_decay"][:, 5] = -torch.inf
        same(case.run()[0][:, 5:], other.run()[0][:, 5:])


@pytest.mark.parametrize("strength", [1e-6, 30.0, 1000.0])
@pytest.mark.parametrize("decay", ["head", "channel"])
@pytest.mark.parametrize("delta", [False, True])
def test_weak_and_strong_decays_in_float32(close, decay, delta, strength):
    """A quotient of running products would overflow: the logarithms add up to tens of thousands."""
    options = {"tokens": 90, "chunk_size": 64, "width": 8, "strength": strength}
    single = Case(decay, delta, **options, dtype=torch.float32).gradients()
    double = Case(decay, delta, **options).gradients(backend="naive")
    assert single[0].dtype == single[1].matrix.dtype == torch.float32
    close(single, double, 1e-4)


def test_the_state_stays_in_float32_in_half_precision(close, rule):
    case, half = Case(*rule), Case(*rule, dtype=torch.bfloat16)
    half.state = half.state.to(torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        y, state = half.run()
    assert y.dtype == torch.bfloat16
    assert state.matrix.dtype == torch.float32
    close((y.double(), state.to(torch.float64)), case.run(), 0.05)
    inputs = list(half.inputs.values())
    assert gated_delta_rule(*inputs)[1].matrix.dtype == torch.float32


def test_equal_keys_do_not_blow_up():
    """The worst case of the triangular system: every key the same, every step a whole one."""
    k = torch.ones(1, 512, 1, 16) / 4
    y, state = gated_delta_rule(k, k, torch.randn(1, 512, 1, 16), None, torch.ones(1, 512, 1))
    assert y.abs().max() < 10
    assert state.matrix.abs().max() < 10


# Special cases ---------------------------------------------------------------------------------------------


def test_delta_net_is_the_token_rule_of_the_associative_memory(close):
    """`theta = beta / 2`, for the gradient of the squared error carries a factor 2."""
    case = Case(None, True)
    q, k, v, _, beta = case.inputs.values()
    none, memory = torch.zeros_like(beta), initial_state([case.state.matrix])
    y, memory = associative_memory(q, k, v, beta / 2, none, none, memory, rule="token", residual=False)
    close(case.run(), (y, GatedDeltaRuleState(memory.weights[0])), EXACT)


def test_the_order_of_titans_is_a_change_of_variables(close):
    """Titans reads the error before the decay: `beta = 2 theta / (1 - alpha)` and values times `1 - alpha`."""
    case = Case("head", True)
    q, k, v, log_decay, beta = case.inputs.values()
    decay = log_decay.exp()
    gates = (beta * decay / 2, 1 - decay, torch.zeros_like(decay))
    memory = initial_state([case.state.matrix])
    y, memory = associative_memory(q, k, v / decay.unsqueeze(-1), *gates, memory, rule="token", residual=False)
    close(case.run(), (y, GatedDeltaRuleState(memory.weights[0])), EXACT)


def test_retention_is_decayed_attention(close):
    """`(Q K' * D) V` with `D[t, j] = gamma^(t - j)`: the parallel form of the RetNet paper."""
    case = Case("head", False)
    gamma = torch.tensor([0.9, 0.5], dtype=torch.float64)
    case.inputs["log_decay"] = gamma.log().expand(2, 13, 2)
    q, k, v = (case.inputs[n].transpose(1, 2) for n in "qkv")
    distance = torch.arange(13).view(-1, 1) - torch.arange(13)
    decay = torch.where(distance >= 0, gamma.view(2, 1, 1) ** distance, 0.0)
    y, _ = case.run(state=case.state.map(torch.zeros_like))
    close(y.transpose(1, 2), (q @ k.mT * decay) @ v, EXACT)


@pytest.mark.parametrize("name", ["torch_chunk_gated_delta_rule", "torch_recurrent_gated_delta_rule"])
def test_equals_qwen3_next(close, name):
    """The gated delta rule of transformers, which scales queries and works in float32."""
    theirs = getattr(importlib.import_module("transformers.models.qwen3_next.modeling_qwen3_next"), name)
    case = Case("head", True, tokens=70, width=8, out=8, dtype=torch.float32, chunk_size=16)
    q, k, v, log_decay, beta = case.inputs.values()
    y, matrix = theirs(
        q * 8**0.5, k, v, g=log_decay, beta=beta, initial_state=case.state.matrix, output_final_state=True
    )
    close(case.run(), (y, GatedDeltaRuleState(matrix)), 1e-5)


# Bad input -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("changes", "message"), [
    ({"q": torch.zeros(2, 3, 4)}, r"q has shape \(2, 3, 4\): expected \[B, T, H, d_k\]"),
    ({"q": torch.zeros(2, 0, 2, 4)}, "q holds no tokens"),
    ({"k": torch.zeros(2, 5, 2, 3)}, r"k has shape \(2, 5, 2, 3\): expected \(2, 5, 2, 4\)"),
    ({"v": torch.zeros(2, 5, 1, 3)}, "v has shape"),
    ({"v": torch.zeros(2, 5, 2)}, "v has shape"),
    ({"log_decay": torch.zeros(2, 5, 2, 3)}, "log_decay has shape"),
    ({"log_decay": torch.zeros(2, 2, 5)}, "log_decay has shape"),
    ({"beta": torch.zeros(2, 5, 2, 1)}, "beta has shape"),
    ({"mask": torch.ones(2, 4, dtype=torch.bool)}, "mask has shape"),
    ({"mask": torch.ones(2, 5)}, "mask has dtype torch.float32"),
    ({"state": GatedDeltaRuleState(torch.zeros(2, 2, 3, 4))}, "the state's matrix has shape"),
    ({"state": GatedDeltaRuleState(torch.zeros(3, 2, 4, 3))}, "the state holds 3 rows and q 2"),
    ({"chunk_size": 0}, "chunk_size=0 must be at least 1"),
    ({"backend": "fast"}, "backend='fast' is unknown: choose one of chunk, naive"),
])  # fmt: skip
def test_bad_arguments(changes, message):
    case = Case(tokens=5)
    with pytest.raises(ValueError, match=message):
        gated_delta_rule(**{**case.inputs, **changes})
