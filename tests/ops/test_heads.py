"""Heads made in compiled code: equal to those made by PyTorch operations, which the layers' tests hold to the paper."""

import importlib

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from titans.ops.heads import FORMS, heads
from titans.ops.heads.reference import reference

MEMORY = importlib.import_module("titans.ops.associative_memory.native")
NATIVE = importlib.import_module("titans.ops.heads.native")


@pytest.fixture
def calls(kernel, monkeypatch):
    """Count the calls of compiled code."""
    made = []

    def counted(name, *args, call=NATIVE._call, **rest):
        made.append(name)
        call(name, *args, **rest)

    monkeypatch.setattr(NATIVE, "_call", counted)
    return made


def make(batch, tokens, count, width, forms, dtype=torch.float64, tail=True, scale=6.0, seed=0):
    """Inputs, taps and tail; at this scale some values are clipped and others are not."""
    generator = torch.Generator().manual_seed(seed)
    channels = len(forms) * count * width
    shapes = ((batch, tokens, channels), (4, channels), (batch, 3, channels))
    x, taps, before = (scale * torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes)
    return [y.to(dtype).requires_grad_() for y in (x, taps / scale, before if tail else torch.zeros_like(before))]


def gradients(make_heads, inputs, count, forms):
    """Heads and the gradients of a random function of them."""
    outputs = make_heads(*inputs, count, forms)
    generator = torch.Generator().manual_seed(99)
    weights = [torch.randn(y.shape, generator=generator, dtype=torch.float64).to(y.dtype) for y in outputs]
    total = sum((y * w).sum() for y, w in zip(outputs, weights, strict=True))
    return [y.detach() for y in outputs], torch.autograd.grad(total, inputs)


@settings(max_examples=60)
@given(st.data())
def test_equals_the_reference(close, kernel, poisoned, data):
    draw = data.draw
    forms = tuple(draw(st.lists(st.sampled_from(list(FORMS)), min_size=1, max_size=3)))
    count, dtype = draw(st.integers(1, 3)), draw(st.sampled_from((torch.float64, torch.float32)))
    tokens = draw(st.one_of(st.integers(1, 6), st.integers(125, 133), st.integers(250, 400)))
    inputs = make(
        draw(st.integers(1, 3)), tokens, count, draw(st.integers(2, 35)), forms,
        dtype, draw(st.booleans()), draw(st.sampled_from((0.1, 6.0, 40.0))), draw(st.integers(0, 9)),
    )  # fmt: skip
    exact = [x.detach().double().requires_grad_() for x in inputs]
    tolerance = 1e-10 if dtype == torch.float64 else 1e-5
    close(gradients(heads, inputs, count, forms), gradients(reference, exact, count, forms), tolerance)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("size", [0.0, 1e-14, 1e-6])
def test_short_vectors(same, close, kernel, size, dtype):
    """Below the smallest length that counts, nothing is made longer than by its inverse."""
    forms = ("unit", "clipped")
    inputs = make(1, 9, 2, 5, forms, dtype)
    with torch.no_grad():
        inputs[0].mul_(size)
        inputs[2].mul_(size)
    found, expected = (gradients(f, inputs, 2, forms) for f in (heads, reference))
    if size == 0:
        same(found[0], expected[0])
    close(found, expected, 1e-10 if dtype == torch.float64 else 1e-5)


def test_threads_change_no_bit(same, kernel):
    forms = ("unit", "unit", "clipped")
    inputs = make(3, 700, 4, 32, forms, torch.float32)
    usual, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            found.append(gradients(heads, inputs, 4, forms))
    finally:
        torch.set_num_threads(usual)
    same(found[1], found[0])
    same(found[2], found[0])


def test_twice_differentiable(kernel, close):
    forms = ("unit", "plain", "clipped")
    inputs = make(2, 4, 1, 3, forms, scale=12.0)
    assert torch.autograd.gradgradcheck(lambda *x: heads(*x, 1, forms), inputs)


def test_gradients_of_any_layout(close, kernel):
    """What comes back may be expanded, transposed, or missing."""
    forms = ("unit", "clipped", "plain")
    inputs = make(2, 5, 2, 3, forms)
    weight = torch.randn(2, 2, 3, 5, dtype=torch.float64)

    def total(make_heads):
        first, second, _ = make_heads(*inputs, 2, forms)
        return first.sum() + (second.mT * weight).sum()

    found, expected = (torch.autograd.grad(total(f), inputs) for f in (heads, reference))
    close(found, expected, 1e-10)


def test_inputs_of_any_layout(close, kernel):
    x, taps, tail = make(3, 5, 2, 3, ("unit",))
    others = (x.mT.contiguous().mT, taps.mT.contiguous().mT, tail[:1].expand(3, -1, -1))
    close(heads(*others, 2, ("unit",)), reference(x, taps, tail[:1].expand(3, -1, -1), 2, ("unit",)), 1e-12)


def test_nan_spoils_what_sees_it(kernel):
    x, taps, tail = make(2, 9, 2, 5, ("unit", "clipped"))
    with torch.no_grad():
        x[0, 2] = torch.nan
    for y in heads(x, taps, tail, 2, ("unit", "clipped")):
        assert y[0, :, 2:6].isnan().all()
        assert y[0, :, :2].isfinite().all()
        assert y[0, :, 6:].isfinite().all()
        assert y[1].isfinite().all()


def test_used_where_it_can_be(calls):
    inputs = make(1, 4, 1, 3, ("unit",), torch.float32)
    heads(*inputs, 1, ("unit",))
    assert calls == ["heads_forward"]
    for other in (
        [x.bfloat16() for x in inputs],
        [inputs[0], inputs[1].double(), inputs[2]],
        [inputs[0], inputs[1][:3], inputs[2][:, :2]],
        [inputs[0], None, None],
    ):
        heads(*other, 1, ("unit",))
    with FlopCounterMode(display=False):  # must see each operation
        heads(*inputs, 1, ("unit",))
    assert calls == ["heads_forward"]


def test_everything_works_without_it(same, monkeypatch):
    monkeypatch.setattr(MEMORY, "load_kernel", lambda real: None)
    inputs = make(2, 4, 2, 3, ("unit", "clipped"))
    same(*(gradients(f, inputs, 2, ("unit", "clipped")) for f in (heads, reference)))
