"""The gated norm in compiled code: equal to the one made by PyTorch operations."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from titans.ops import native
from titans.ops.gated_rms_norm import gated_rms_norm, naive_gated_rms_norm

EPS = 1e-6


def make(batch, tokens, heads, width, dtype=torch.float64, scale=2.0, seed=0):
    """What was read, the gate and the norm's scale."""
    generator = torch.Generator().manual_seed(seed)
    shapes = ((batch, tokens, heads, width), (batch, tokens, heads, width), (width,))
    return [
        (scale * torch.randn(shape, generator=generator, dtype=torch.float64)).to(dtype).requires_grad_()
        for shape in shapes
    ]


def gradients(op, inputs):
    y = op(*inputs, EPS)
    weight = torch.randn(y.shape, generator=torch.Generator().manual_seed(99), dtype=torch.float64).to(y.dtype)
    return y.detach(), torch.autograd.grad((y * weight).sum(), inputs)


@settings(max_examples=40)
@given(st.data())
def test_equals_the_reference(close, kernel, poisoned, data):
    draw = data.draw
    dtype = draw(st.sampled_from((torch.float64, torch.float32)))
    least = 1 if dtype == torch.float64 else 2  # a norm of one number is a step: its slope is lost in float32
    inputs = make(
        draw(st.integers(1, 3)), draw(st.integers(1, 70)), draw(st.integers(1, 3)), draw(st.integers(least, 35)),
        dtype, draw(st.sampled_from((0.0, 1e-3, 2.0, 30.0))), draw(st.integers(0, 9)),
    )  # fmt: skip
    exact = [x.detach().double().requires_grad_() for x in inputs]
    tolerance = 1e-10 if dtype == torch.float64 else 1e-5
    close(gradients(gated_rms_norm, inputs), gradients(naive_gated_rms_norm, exact), tolerance)


def test_threads_change_no_bit(same, kernel):
    inputs = make(3, 700, 4, 32, torch.float32)
    usual, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            found.append(gradients(gated_rms_norm, inputs))
    finally:
        torch.set_num_threads(usual)
    same(found[1], found[0])
    same(found[2], found[0])


def test_twice_differentiable(kernel):
    assert torch.autograd.gradgradcheck(lambda *x: gated_rms_norm(*x, EPS), make(2, 2, 3, 3))


def test_any_layout(close, kernel):
    x, gate, weight = make(2, 5, 3, 4)
    others = (x.mT.contiguous().mT, gate.mT.contiguous().mT, weight)
    found, expected = (f(*x, EPS) for f, x in ((gated_rms_norm, others), (naive_gated_rms_norm, (x, gate, weight))))
    close(found, expected, 1e-12)
    total = (torch.autograd.grad(x.sum(), (x, gate, weight)) for x in (found, expected))  # an expanded gradient
    close(*total, 1e-10)


@pytest.mark.parametrize("which", [0, 1])
def test_nan_spoils_its_token(kernel, which):
    inputs = make(2, 5, 2, 3)
    with torch.no_grad():
        inputs[which][0, 3] = torch.nan
    y = gated_rms_norm(*inputs, EPS)
    assert y[0, 3].isnan().all()
    assert y[0, [0, 1, 2, 4]].isfinite().all()
    assert y[1].isfinite().all()


def test_used_where_it_can_be(kernel, monkeypatch):
    made = []

    def counted(name, *args, call=native.call):
        made.append(name)
        call(name, *args)

    monkeypatch.setattr(native, "call", counted)
    inputs = make(1, 2, 3, 4, torch.float32)
    gated_rms_norm(*inputs, EPS)
    assert made == ["gated_rms_norm_forward"]
    gated_rms_norm(*(x.bfloat16() for x in inputs), EPS)
    with FlopCounterMode(display=False):  # must see each operation
        gated_rms_norm(*inputs, EPS)
    assert made == ["gated_rms_norm_forward"]
