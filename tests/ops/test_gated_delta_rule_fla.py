"""Calls of flash-linear-attention: which kernel, and with what; against stand-ins that follow its documentation."""

import sys
from types import ModuleType

import pytest
import torch
import torch.nn.functional as F

from titans.ops.gated_delta_rule import GatedDeltaRuleState, fla, gated_delta_rule

CALLS = []  # names of the kernels called


def stand_in(name, delta):
    """A kernel: `[B, T, H, d]` in half precision, gates in logarithms, the state `[B, H, d_k, d_v]` in float32."""

    def run(q, k, v, g=None, beta=None, *, scale, initial_state, output_final_state):
        assert (beta is not None) == delta
        assert output_final_state
        assert {x.dtype for x in (q, k, v)} == {torch.bfloat16}
        assert initial_state.dtype == torch.float32
        assert g is None or (g.dtype == torch.float32 and g.isfinite().all())
        CALLS.append(name)
        state, outputs = initial_state.double(), []
        for t in range(q.shape[1]):
            if g is not None:
                decay = g[:, t].double().exp()
                state = state * (decay[..., None, None] if decay.dim() == 2 else decay[..., None])
            write = v[:, t].double()
            if beta is not None:
                write = (write - torch.einsum("bhk,bhkv->bhv", k[:, t].double(), state)) * beta[:, t].double()[
                    ..., None
                ]
            state = state + torch.einsum("bhk,bhv->bhkv", k[:, t].double(), write)
            outputs.append(scale * torch.einsum("bhk,bhkv->bhv", q[:, t].double(), state))
        return torch.stack(outputs, 1).to(q.dtype), state.float()

    return run


@pytest.fixture
def kernels(monkeypatch):
    """Pretend that the package is there and tensors are on a GPU."""
    for folder, name, delta in (
        ("simple_gla", "chunk_simple_gla", False),
        ("gla", "chunk_gla", False),
        ("delta_rule", "chunk_delta_rule", True),
        ("gated_delta_rule", "chunk_gated_delta_rule", True),
    ):
        module = ModuleType(f"fla.ops.{folder}")
        setattr(module, name, stand_in(name, delta))
        monkeypatch.setitem(sys.modules, module.__name__, module)
    for name in ("fla", "fla.ops"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setattr(fla, "on_gpu", lambda q: True)
    CALLS.clear()


def inputs(decay, delta, dtype=torch.bfloat16):
    torch.manual_seed(0)
    gates = (2, 9, 2)
    log_decay = None if decay is None else F.logsigmoid(torch.randn(*gates, *[4] * (decay == "channel")))
    q, k, v = torch.randn(*gates, 4), F.normalize(torch.randn(*gates, 4), dim=-1), torch.randn(*gates, 3)
    tensors = [q, k, v, log_decay, torch.rand(gates) if delta else None]
    return [x if x is None else x.to(dtype) for x in tensors], GatedDeltaRuleState(torch.randn(2, 2, 4, 3))


@pytest.mark.parametrize(("decay", "delta", "name"), [
    (None, False, "chunk_simple_gla"), ("head", False, "chunk_simple_gla"), ("channel", False, "chunk_gla"),
    (None, True, "chunk_delta_rule"), ("head", True, "chunk_gated_delta_rule"),
])  # fmt: skip
@pytest.mark.parametrize("masked", [False, True])
def test_the_kernel_gives_what_the_chunks_give(kernels, decay, delta, name, masked):
    tensors, state = inputs(decay, delta)
    mask = torch.rand(2, 9) < 0.7 if masked else None
    y, end = gated_delta_rule(*tensors, state, mask=mask)
    assert [name] == CALLS
    expected, expected_end = gated_delta_rule(*tensors, state, mask=mask, backend="chunk")
    assert y.dtype == torch.bfloat16
    torch.testing.assert_close(y.float(), expected.float(), atol=0.02, rtol=0.02)  # outputs are rounded to bfloat16
    torch.testing.assert_close(end.matrix, expected_end.matrix, atol=1e-4, rtol=1e-4)


def test_a_decay_of_exactly_0_stays_finite(kernels):
    tensors, state = inputs("head", True)
    tensors[3][:, 4] = -torch.inf
    y, end = gated_delta_rule(*tensors, state)
    expected, expected_end = gated_delta_rule(*tensors, state, backend="chunk")
    torch.testing.assert_close(y.float(), expected.float(), atol=0.02, rtol=0.02)
    torch.testing.assert_close(end.matrix, expected_end.matrix, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(("decay", "delta", "dtype"), [
    ("channel", True, torch.bfloat16), ("head", True, torch.float32), ("head", True, torch.float64),
])  # fmt: skip
def test_what_has_no_kernel_goes_by_chunks(kernels, decay, delta, dtype):
    tensors, state = inputs(decay, delta, dtype)
    y, _ = gated_delta_rule(*tensors, state)
    assert not CALLS
    assert torch.equal(y, gated_delta_rule(*tensors, state, backend="chunk")[0])


def test_nothing_of_it_on_a_cpu():
    (q, *_), _ = inputs("head", True)
    assert not fla.on_gpu(q)
