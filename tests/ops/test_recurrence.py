"""The coefficients of one chunk, against the formulas of docs/semantics.md, section 2, as literal loops."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from titans.ops.associative_memory.recurrence import coefficients, segment_product


def product(factors):
    result = torch.ones((), dtype=torch.float64)
    for f in factors:
        result = result * f
    return result


def literal(theta, decay, eta, mask):
    """A, B, C, D and H of one chunk; all arguments `[b]`."""
    b = len(theta)
    if mask is not None:  # the chunk without its padding, whose rows repeat the token before them
        theta, decay, eta = torch.where(mask, theta, 0.0), torch.where(mask, decay, 1.0), torch.where(mask, eta, 1.0)
    writes = torch.ones(b) if mask is None else mask.double()
    one, a, bb = torch.zeros(b, b), torch.zeros(b), torch.zeros(b)
    c, d = one.double(), torch.zeros(b, dtype=torch.float64)
    a, bb = a.double(), bb.double()
    for t in range(b):
        a[t] = product(decay[: t + 1])
        for j in range(t + 1):
            reach = product(decay[j + 1 : t + 1]) * writes[j]
            bb[t] += reach * product(eta[: j + 1])
            for i in range(j + 1):
                c[t, i] += reach * product(eta[i + 1 : j + 1]) * theta[i]
    for i in range(b):
        d[i] = product(eta[i + 1 :]) * theta[i]
    return a, bb, c, d, product(eta)


@st.composite
def gates(draw):
    """Gates of one chunk with exact zeros and ones among them."""
    b = draw(st.integers(1, 7))
    value = st.one_of(st.sampled_from((0.0, 1.0)), st.floats(0, 1))
    theta, decay, eta = (
        torch.tensor(draw(st.lists(value, min_size=b, max_size=b)), dtype=torch.float64) for _ in range(3)
    )
    mask = draw(st.one_of(st.none(), st.lists(st.booleans(), min_size=b, max_size=b)))
    return theta, decay, eta, None if mask is None else torch.tensor(mask)


@given(gates())
def test_coefficients_are_the_sums_of_products(close, gates):
    theta, decay, eta, mask = gates
    found = coefficients(theta, decay.unsqueeze(0), eta, mask)
    b = len(theta)
    shapes = [tuple(x.shape) for x in found]
    assert shapes == [(b, 1), (b, 1), (1, b, b), (b, 1), (1, 1)]
    found = (found.weights[:, 0], found.surprise[:, 0], found.gradient[0], found.momentum[:, 0], found.memory[0, 0])
    close(found, literal(theta, decay, eta, mask), 1e-14)


def test_batches_and_channels_are_independent(close):
    generator = torch.Generator().manual_seed(0)
    theta, eta = (torch.rand(2, 3, 5, generator=generator, dtype=torch.float64) for _ in range(2))
    decay = torch.rand(2, 3, 4, 5, generator=generator, dtype=torch.float64)
    found = coefficients(theta, decay, eta, None)
    for i in range(2):
        for j in range(3):
            for channel in range(4):
                a, b, c, d, h = literal(theta[i, j], decay[i, j, channel], eta[i, j], None)
                per_channel = (x[i, j, :, channel] for x in (found.weights, found.surprise))
                here = (
                    *per_channel,
                    found.gradient[i, j, channel],
                    found.momentum[i, j, :, 0],
                    found.memory[i, j, 0, 0],
                )
                close(here, (a, b, c, d, h), 1e-14)


def test_channels_are_spread_over_wider_layers():
    decay = torch.tensor([[0.5], [0.25]], dtype=torch.float64)
    one = torch.ones(1, dtype=torch.float64)
    wide = coefficients(one, decay, one, None).channels(6)
    assert wide.weights.tolist() == [[0.5, 0.5, 0.5, 0.25, 0.25, 0.25]]
    assert wide.gradient.shape == (6, 1, 1)


@pytest.mark.parametrize("factors", [[0.0, 0.5, 1.0], [0.3, 0.0, 0.0, 0.7], [1.0, 1.0], [0.4], [1e-200, 1e-200, 0.5]])
def test_segment_product(factors):
    factors = torch.tensor(factors, dtype=torch.float64, requires_grad=True)
    found = segment_product(factors)
    for t in range(len(factors)):
        for j in range(len(factors)):
            assert found[t, j] == (product(factors[j + 1 : t + 1]) if j <= t else 0)
    assert torch.autograd.gradcheck(segment_product, (factors,))
    assert torch.autograd.gradgradcheck(segment_product, (factors,))


def test_no_precision_is_lost_after_many_small_factors():
    """An exponential of differences of cumulated logarithms would lose it, in float32 all of it."""
    factors = torch.full((64,), 1e-30)
    factors[60:] = 0.9
    found = segment_product(factors)
    torch.testing.assert_close(found[63, 59], torch.tensor(0.9**4), rtol=1e-6, atol=0)
