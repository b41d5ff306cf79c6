"""The chunked selective scan equals the token-by-token one, cut anywhere."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.invariants import PROPERTIES, VOCABULARY, of_op
from titans.ops.gated_delta_rule import gated_delta_rule
from titans.ops.selective_scan import SelectiveScanState, selective_scan

EXACT = 1e-11


class Case:
    """Inputs and state of one call, in mid-stream."""

    def __init__(self, *, batch=2, tokens=13, channels=3, width=4, chunk_size=4, strength=1.0, masked=False, seed=0,
                 dtype=torch.float64):  # fmt: skip
        generator = torch.Generator().manual_seed(seed)

        def normal(*shape):
            return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)

        self.inputs = {
            "u": normal(batch, tokens, channels),
            "step": strength * normal(batch, tokens, channels).exp(),
            "rate": normal(channels, width).exp(),
            "b": normal(batch, tokens, width),
            "c": normal(batch, tokens, width),
        }
        self.state = SelectiveScanState(normal(batch, channels, width))
        self.mask = torch.rand(batch, tokens, generator=generator) < 0.7 if masked else None
        self.chunk_size = chunk_size

    def run(self, start=0, stop=None, state=None, **changes):
        """Call the op on a stretch of the tokens."""
        inputs = [x if name == "rate" else x[:, start:stop] for name, x in self.inputs.items()]
        mask = None if self.mask is None else self.mask[:, start:stop]
        options = {"chunk_size": self.chunk_size, "mask": mask, **changes}
        return selective_scan(*inputs, self.state if state is None else state, **options)

    def gradients(self, **changes):
        """Outputs, final state, and the gradients of a random function of both with respect to every input."""
        self.inputs = {n: x.detach().requires_grad_() for n, x in self.inputs.items()}
        self.state = self.state.map(lambda x: x.detach().requires_grad_())
        leaves = self.inputs | {"state": self.state.vector}
        y, state = self.run(**changes)
        generator = torch.Generator().manual_seed(99)
        total = sum((x * torch.randn(x.shape, generator=generator, dtype=torch.float64)).sum()
                    for x in (y, state.vector))  # fmt: skip
        found = torch.autograd.grad(total, tuple(leaves.values()))
        return y.detach(), state.detach(), dict(zip(leaves, found, strict=True))


@given(st.integers(1, 3), st.integers(1, 20), st.integers(1, 24), st.booleans(), st.integers(0, 9))
def test_chunked_equals_reference(close, batch, tokens, chunk_size, masked, seed):
    case = Case(batch=batch, tokens=tokens, chunk_size=chunk_size, masked=masked, seed=seed)
    close(case.gradients(), case.gradients(backend="naive"), EXACT)


def test_long_streams_recompute_and_equal_the_reference(close):
    case = Case(tokens=70, chunk_size=3)
    close(case.gradients(), case.gradients(backend="naive"), EXACT)


@pytest.mark.parametrize("check", PROPERTIES.values(), ids=PROPERTIES)
@pytest.mark.parametrize("backend", ["chunk", "naive"])
def test_invariants(backend, check):
    case = Case(batch=1, tokens=VOCABULARY)
    rate = case.inputs.pop("rate")

    def run(inputs, state, mask):
        return selective_scan(**inputs, rate=rate, state=state, mask=mask, chunk_size=4, backend=backend)

    check(of_op(run, case.inputs, case.state))


def test_no_state_is_an_empty_one(same):
    case, zeros = Case(), SelectiveScanState(torch.zeros(1, 3, 4, dtype=torch.float64))
    same(selective_scan(*case.inputs.values()), selective_scan(*case.inputs.values(), zeros))


def test_it_is_the_linear_recurrence_with_a_head_a_channel(close):
    """Keys b, queries c, values `dt u` of one channel, and a decay for each number of the state."""
    case = Case()
    u, step, rate, b, c = case.inputs.values()
    keys, queries = (x.unsqueeze(2).expand(-1, -1, 3, -1) for x in (b, c))
    y, state = gated_delta_rule(queries, keys, (step * u).unsqueeze(-1), -step.unsqueeze(-1) * rate)
    found, final = selective_scan(u, step, rate, b, c)
    close((found, final.vector), (y.squeeze(-1), state.matrix.squeeze(-1)), EXACT)


@pytest.mark.parametrize("strength", [0.0, 1e-6, 1e4])
def test_short_and_long_steps_in_float32(close, strength):
    options = {"tokens": 60, "chunk_size": 16, "strength": strength}
    single = Case(**options, dtype=torch.float32).gradients()
    assert single[1].vector.dtype == torch.float32
    close(single, Case(**options).gradients(backend="naive"), 1e-4)


def test_the_state_stays_in_float32_in_half_precision(close):
    case, half = Case(), Case(dtype=torch.bfloat16)
    y, state = selective_scan(*half.inputs.values())
    assert (y.dtype, state.vector.dtype) == (torch.bfloat16, torch.float32)
    close((y.double(), state.to(torch.float64)), selective_scan(*case.inputs.values()), 0.05)


@pytest.mark.parametrize(("changes", "message"), [
    ({"u": torch.zeros(2, 5)}, r"u has shape \(2, 5\): expected \[B, T, D\]"),
    ({"u": torch.zeros(2, 0, 3)}, "u holds no tokens"),
    ({"rate": torch.zeros(4, 3)}, r"rate has shape \(4, 3\): expected \[3, S\]"),
    ({"step": torch.zeros(2, 5, 1)}, "step has shape"),
    ({"b": torch.zeros(2, 5, 3)}, "b has shape"),
    ({"c": torch.zeros(2, 4, 4)}, "c has shape"),
    ({"mask": torch.ones(2, 4, dtype=torch.bool)}, "mask has shape"),
    ({"mask": torch.ones(2, 5)}, "mask has dtype torch.float32"),
    ({"state": SelectiveScanState(torch.zeros(3, 3, 4))}, r"the state has shape \(3, 3, 4\): expected \(2, 3, 4\)"),
    ({"chunk_size": 0}, "chunk_size=0 must be at least 1"),
    ({"backend": "fast"}, "backend='fast' is unknown"),
])  # fmt: skip
def test_bad_arguments(changes, message):
    with pytest.raises(ValueError, match=message):
        selective_scan(**{**Case(tokens=5).inputs, **changes})
