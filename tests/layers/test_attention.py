"""Sliding-window attention, against one query at a time."""

import pytest
import torch

from titans.layers.attention import Attention, SlidingWindowAttention

DIM = 16


@pytest.mark.parametrize(
    ("window", "persistent", "count"), [(1, 0, 5), (1, 2, 5), (4, 2, 3), (4, 2, 4), (4, 0, 13), (5, 3, 22)]
)
def test_equals_attention_written_out(scrambled, literal_attention, close, window, persistent, count):
    layer = scrambled(SlidingWindowAttention(DIM, 2, window, persistent))
    x = torch.randn(2, count, DIM, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    literal = literal_attention(layer.attention)
    with torch.no_grad():
        expected = [
            literal(x[:, t], t, [(x[:, j], j) for j in range(max(0, t - window + 1), t + 1)]) for t in range(count)
        ]
        close(layer(x)[0], torch.stack(expected, 1), 1e-11)


def test_nothing_depends_on_the_absolute_position(scrambled, close):
    """The same window of tokens gives the same output wherever it stands in the stream."""
    layer = scrambled(SlidingWindowAttention(DIM, 2, 4, 1))
    x = torch.randn(1, 5, DIM, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        y, _ = layer(x.repeat(1, 30, 1))
    close(y[:, 145:], y[:, 5:10], 1e-11)


def test_positions_matter(scrambled):
    layer = scrambled(SlidingWindowAttention(DIM, 2, 4))
    x = torch.randn(1, 4, DIM, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert not torch.allclose(layer(x)[0][:, 3], layer(x[:, [1, 0, 2, 3]])[0][:, 3])


@pytest.mark.parametrize(("options", "message"), [
    ({"heads": 3}, "dim=16 is not a multiple of heads=3"),
    ({"window": 0}, "window=0"),
    ({"window": -2}, "window=-2"),
    ({"persistent_tokens": -1}, "persistent_tokens=-1"),
])  # fmt: skip
def test_options_that_cannot_work(options, message):
    with pytest.raises(ValueError, match=message):
        SlidingWindowAttention(**{"dim": DIM, "heads": 2, "window": 4, **options})


def test_states_of_other_windows():
    x = torch.randn(1, 3, DIM)
    _, state = SlidingWindowAttention(DIM, 2, 4)(x)
    with pytest.raises(ValueError, match="another configuration"):
        SlidingWindowAttention(DIM, 2, 5)(x, state)


def test_attention_refuses_heads_that_do_not_divide():
    with pytest.raises(ValueError, match="heads=5"):
        Attention(DIM, 5)
