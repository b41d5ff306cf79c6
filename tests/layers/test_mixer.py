"""What holds for every token mixer: one stream cut anywhere, causal, rows apart, padding without effect."""

import copy

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from titans.layers.full_attention import FullAttention

DIM = 16


def tokens(batch, count, seed=0):
    return torch.randn(batch, count, DIM, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@settings(max_examples=4)
@given(st.lists(st.integers(1, 7), min_size=1, max_size=5))
@example([1] * 17)
@example([17])
@example([6, 11])
def test_any_split_equals_one_call(mixer, stream, close, lengths):
    x = tokens(2, sum(lengths))
    with torch.no_grad():
        found = stream(lambda start, stop, state: mixer(x[:, start:stop], state), lengths)
        close(found, mixer(x), 1e-10)


@settings(max_examples=4)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=4), st.integers(0, 2**16), st.sampled_from((0.3, 0.6, 0.9)))
def test_padding_anywhere_and_ragged_rows(mixer, close, lengths, seed, density):
    """Every row of a padded, split batch equals its own tokens in one call: outputs and final state."""
    count = sum(lengths)
    generator = torch.Generator().manual_seed(seed)
    x = tokens(3, count, seed)
    mask = torch.rand(3, count, generator=generator) < density
    spoilt = torch.where(mask.unsqueeze(-1), x, torch.nan)  # what stands at the padding must not matter
    with torch.no_grad():
        outputs, state = [], None
        for piece, here in zip(spoilt.split(lengths, 1), mask.split(lengths, 1), strict=True):
            y, state = mixer(piece, state, here)
            assert (y[~here] == 0).all()
            outputs.append(y)
        y = torch.cat(outputs, 1)
        for row in range(3):
            final = state.select(torch.tensor([row]))
            if mask[row].any():
                close((y[row : row + 1, mask[row]], final), mixer(x[row : row + 1, mask[row]]), 1e-10)
            else:
                close(final, mixer.initial_state(1), 0.0)


def test_causal_and_remembering(mixer, same):
    """A changed token changes nothing before it, exactly; and what it changes after it."""
    x = tokens(2, 17)
    reach = mixer.window if hasattr(mixer, "window") else 17
    with torch.no_grad():
        y, state = mixer(x)
        for p in (0, 3, 4, 5, 11):
            other = x.clone()
            other[:, p] = tokens(2, 1, seed=1)[:, 0]
            changed, final = mixer(other)
            same(changed[:, :p], y[:, :p])
            for t in range(p, 17):
                assert torch.equal(changed[:, t], y[:, t]) == (t >= p + reach), f"token {p} at {t}"
            if reach == 17:
                assert any(not torch.equal(a, b) for a, b in zip(final.tensors(), state.tensors(), strict=True))


def test_rows_are_independent(mixer, same, close):
    x = tokens(3, 11)
    first, rest = torch.tensor([0]), torch.tensor([2, 1])
    with torch.no_grad():
        y, state = mixer(x)
        other = torch.cat([x[:1], 5 * x[1:]])
        changed, final = mixer(other)
        same((changed[:1], final.select(first)), (y[:1], state.select(first)))
        assert not torch.equal(changed[1], y[1])
        close((y[[2, 1]], state.select(rest)), mixer(x[[2, 1]]), 1e-12)


def test_the_input_state_is_not_modified(mixer, same):
    x = tokens(2, 9)
    with torch.no_grad():
        _, state = mixer(x[:, :4])
        before = state.clone()
        first = mixer(x[:, 4:], state)
        same(state, before)
        same(mixer(x[:, 4:], state), first)
        start = mixer.initial_state(2)
        before = start.clone()
        same(mixer(x, start), mixer(x))
        same(start, before)


def test_states_are_no_views_of_parameters(mixer):
    """An optimizer step would change them, and sharded parameters are freed."""
    parameters = {p.untyped_storage().data_ptr() for p in mixer.parameters()}
    _, state = mixer(tokens(2, 1))
    for tensor in (*mixer.initial_state(2).tensors(), *mixer.empty_state(2).tensors(), *state.tensors()):
        assert tensor.untyped_storage().data_ptr() not in parameters


def test_gradients_cross_a_split(mixer, close):
    """What one piece wrote is trained by what a later piece reads, unless the state is detached."""
    x = tokens(1, 13)
    weight = torch.randn(1, 13, DIM, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    parameters = dict(mixer.named_parameters())

    def gradients(y):
        total = (y * weight).sum()
        found = torch.autograd.grad(total, tuple(parameters.values()), allow_unused=True, retain_graph=True)
        return {n: torch.zeros_like(p) if g is None else g for (n, p), g in zip(parameters.items(), found, strict=True)}

    whole = gradients(mixer(x)[0])
    a, state = mixer(x[:, :6])
    b, _ = mixer(x[:, 6:], state)
    close(gradients(torch.cat([a, b], 1)), whole, 1e-9)
    c, _ = mixer(x[:, 6:], state.detach())
    detached = gradients(torch.cat([a, c], 1))
    assert any(not torch.allclose(detached[n], g) for n, g in whole.items()) or mixer.__dict__.get("window") == 1


def test_state_size_does_not_depend_on_the_tokens_read(mixer):
    """But for full attention's, which grows by a key and a value a token."""
    grows = 2 * DIM * 8 if isinstance(mixer, FullAttention) else 0
    with torch.no_grad():
        sizes = {n: mixer(tokens(1, n))[1].nbytes for n in (1, 2, 7, 40)}
    assert sizes == {n: mixer.initial_state(1).nbytes + n * grows for n in sizes}


def test_float32_split_equals_one_call_and_float64(fresh_mixer, stream, close):
    """As initialised: the random parameters above make memories so restless that any rounding grows."""
    x = tokens(2, 30)
    double = copy.deepcopy(fresh_mixer).double()
    with torch.no_grad():
        expected = double(x)
        x = x.float()
        whole = fresh_mixer(x)
        split = stream(lambda start, stop, state: fresh_mixer(x[:, start:stop], state), [7, 1, 20, 2])
    assert whole[0].dtype == torch.float32
    close(split, whole, 1e-4)
    close(whole, expected, 1e-4)


@pytest.mark.parametrize(("spoil", "message"), [
    (lambda x: x[0], "x has shape"),
    (lambda x: x[..., :-1], "x has shape"),
    (lambda x: x[:, :0], "x has shape"),
    (lambda x: x * torch.nan, "NaN or infinity"),
    (lambda x: torch.where(x == x[1, 2, 3], torch.inf, x), "NaN or infinity"),
])  # fmt: skip
def test_bad_input(mixer, spoil, message):
    with pytest.raises(ValueError, match=message):
        mixer(spoil(tokens(2, 4)))


@pytest.mark.parametrize(
    "mask", [torch.ones(2, 4), torch.ones(2, 3, dtype=torch.bool), torch.ones(4, dtype=torch.bool)]
)
def test_bad_mask(mixer, mask):
    with pytest.raises(ValueError, match="mask is"):
        mixer(tokens(2, 4), mask=mask)


def test_bad_state(mixer):
    x = tokens(2, 4)
    _, state = mixer(x)
    with pytest.raises(ValueError, match="holds 2 rows and x 3"):
        mixer(tokens(3, 4), state)
    with pytest.raises(ValueError, match="state is a dict"):
        mixer(x, {})
    narrow = state.map(lambda t: t[..., :-1] if t.dim() > 2 else t)
    with pytest.raises(ValueError, match="another configuration"):
        mixer(x, narrow)
