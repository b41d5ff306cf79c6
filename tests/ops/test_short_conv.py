"""Heads made in compiled code: equal to those made by PyTorch operations, which the layers' tests hold to the paper."""

import importlib

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from titans.ops.short_conv import NORMS, short_conv_qkv
from titans.ops.short_conv.naive import naive_short_conv_qkv

BUILT = importlib.import_module("titans.ops.native")
NATIVE = importlib.import_module("titans.ops.short_conv.native")


@pytest.fixture
def calls(kernel, monkeypatch):
    """Count the calls of compiled code."""
    made = []

    def counted(name, x, problem, call=NATIVE.call):
        made.append(name)
        call(name, x, problem)

    monkeypatch.setattr(NATIVE, "call", counted)
    return made


def make(batch, tokens, count, width, norms, dtype=torch.float64, conv_state=True, scale=6.0, seed=0):
    """Inputs, conv_weight and conv_state; at this scale some values are clipped and others are not."""
    generator = torch.Generator().manual_seed(seed)
    channels = len(norms) * count * width
    shapes = ((batch, tokens, channels), (4, channels), (batch, 3, channels))
    x, conv_weight, before = (scale * torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes)
    return [
        y.to(dtype).requires_grad_()
        for y in (x, conv_weight / scale, before if conv_state else torch.zeros_like(before))
    ]


def gradients(make_heads, inputs, count, norms):
    """Heads and the gradients of a random function of them."""
    outputs = make_heads(*inputs, count, norms)
    generator = torch.Generator().manual_seed(99)
    weights = [torch.randn(y.shape, generator=generator, dtype=torch.float64).to(y.dtype) for y in outputs]
    total = sum((y * w).sum() for y, w in zip(outputs, weights, strict=True))
    return [y.detach() for y in outputs], torch.autograd.grad(total, inputs)


@settings(max_examples=60)
@given(st.data())
def test_equals_the_reference(close, kernel, poisoned, data):
    draw = data.draw
    norms = tuple(draw(st.lists(st.sampled_from(list(NORMS)), min_size=1, max_size=3)))
    count, dtype = draw(st.integers(1, 3)), draw(st.sampled_from((torch.float64, torch.float32)))
    tokens = draw(st.one_of(st.integers(1, 6), st.integers(125, 133), st.integers(250, 400)))
    inputs = make(
        draw(st.integers(1, 3)), tokens, count, draw(st.integers(2, 35)), norms,
        dtype, draw(st.booleans()), draw(st.sampled_from((0.1, 6.0, 40.0))), draw(st.integers(0, 9)),
    )  # fmt: skip
    exact = [x.detach().double().requires_grad_() for x in inputs]
    # SiLU(-z) is about z exp(-z): its relative error is the absolute one of z, a sum of four products.
    rounding = 4 * torch.finfo(dtype).eps * float(exact[0].detach().abs().max() * exact[1].detach().abs().max())
    tolerance = 1e-10 if dtype == torch.float64 else max(1e-5, rounding)
    close(
        gradients(short_conv_qkv, inputs, count, norms), gradients(naive_short_conv_qkv, exact, count, norms), tolerance
    )


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("size", [0.0, 1e-14, 1e-6])
def test_short_vectors(same, close, kernel, size, dtype):
    """Below the smallest length that counts, nothing is made longer than by its inverse."""
    norms = ("l2norm", "clip_rms")
    inputs = make(1, 9, 2, 5, norms, dtype)
    with torch.no_grad():
        inputs[0].mul_(size)
        inputs[2].mul_(size)
    found, expected = (gradients(f, inputs, 2, norms) for f in (short_conv_qkv, naive_short_conv_qkv))
    if size == 0:
        same(found[0], expected[0])
    close(found, expected, 1e-10 if dtype == torch.float64 else 1e-5)


def test_threads_change_no_bit(same, kernel):
    norms = ("l2norm", "l2norm", "clip_rms")
    inputs = make(3, 700, 4, 32, norms, torch.float32)
    usual, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            found.append(gradients(short_conv_qkv, inputs, 4, norms))
    finally:
        torch.set_num_threads(usual)
    same(found[1], found[0])
    same(found[2], found[0])


def test_twice_differentiable(kernel, close):
    norms = ("l2norm", "none", "clip_rms")
    inputs = make(2, 4, 1, 3, norms, scale=12.0)
    assert torch.autograd.gradgradcheck(lambda *x: short_conv_qkv(*x, 1, norms), inputs)


def test_gradients_of_any_layout(close, kernel):
    """What comes back may be expanded, transposed, or missing."""
    norms = ("l2norm", "clip_rms", "none")
    inputs = make(2, 5, 2, 3, norms)
    weight = torch.randn(2, 5, 3, 2, dtype=torch.float64)

    def total(make_heads):
        first, second, _ = make_heads(*inputs, 2, norms)
        return first.sum() + (second.mT * weight).sum()

    found, expected = (torch.autograd.grad(total(f), inputs) for f in (short_conv_qkv, naive_short_conv_qkv))
    close(found, expected, 1e-10)


def test_inputs_of_any_layout(close, kernel):
    x, conv_weight, conv_state = make(3, 5, 2, 3, ("l2norm",))
    others = (x.mT.contiguous().mT, conv_weight.mT.contiguous().mT, conv_state[:1].expand(3, -1, -1))
    close(
        short_conv_qkv(*others, 2, ("l2norm",)),
        naive_short_conv_qkv(x, conv_weight, conv_state[:1].expand(3, -1, -1), 2, ("l2norm",)),
        1e-12,
    )


def test_nan_spoils_what_sees_it(kernel):
    x, conv_weight, conv_state = make(2, 9, 2, 5, ("l2norm", "clip_rms"))
    with torch.no_grad():
        x[0, 2] = torch.nan
    for y in short_conv_qkv(x, conv_weight, conv_state, 2, ("l2norm", "clip_rms")):
        assert y[0, 2:6].isnan().all()
        assert y[0, :2].isfinite().all()
        assert y[0, 6:].isfinite().all()
        assert y[1].isfinite().all()


def test_used_where_it_can_be(calls):
    inputs = make(1, 4, 1, 3, ("l2norm",), torch.float32)
    short_conv_qkv(*inputs, 1, ("l2norm",))
    assert calls == ["short_conv_forward"]
    for other in (
        [x.bfloat16() for x in inputs],
        [inputs[0], inputs[1].double(), inputs[2]],
        [inputs[0], inputs[1][:3], inputs[2][:, :2]],
        [inputs[0], None, None],
    ):
        short_conv_qkv(*other, 1, ("l2norm",))
    with FlopCounterMode(display=False):  # must see each operation
        short_conv_qkv(*inputs, 1, ("l2norm",))
    assert calls == ["short_conv_forward"]


def test_everything_works_without_it(same, monkeypatch):
    monkeypatch.setattr(BUILT, "load_kernel", lambda real: None)
    inputs = make(2, 4, 2, 3, ("l2norm", "clip_rms"))
    same(*(gradients(f, inputs, 2, ("l2norm", "clip_rms")) for f in (short_conv_qkv, naive_short_conv_qkv)))
