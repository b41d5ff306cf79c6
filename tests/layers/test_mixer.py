"""Every token mixer in float32, and what it refuses; what holds for all in `tests/invariants.py`."""

import copy

import pytest
import torch

DIM = 16


def tokens(batch, count, seed=0):
    return torch.randn(batch, count, DIM, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


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
