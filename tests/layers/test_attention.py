"""Attention, over a sliding window and over everything, against one query at a time."""

import pytest
import torch

from titans.layers.attention import Attention
from titans.layers.full_attention import FullAttention, FullAttentionState
from titans.layers.sliding_window_attention import SlidingWindowAttention

DIM = 16


@pytest.mark.parametrize("paper_form", [False, True])
@pytest.mark.parametrize(
    ("window", "persistent", "count"), [(1, 0, 5), (1, 2, 5), (4, 2, 3), (4, 2, 4), (4, 0, 13), (5, 3, 22)]
)
def test_equals_attention_written_out(scrambled, literal_attention, close, window, persistent, count, paper_form):
    layer = scrambled(SlidingWindowAttention(DIM, 2, window, persistent, paper_form=paper_form))
    x = torch.randn(2, count, DIM, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    literal = literal_attention(layer.attention)
    with torch.no_grad():
        expected = [literal(x, t, t, [(j, j) for j in range(max(0, t - window + 1), t + 1)]) for t in range(count)]
        close(layer(x)[0], torch.stack(expected, 1), 1e-11)


@pytest.mark.parametrize("lengths", [[1], [13], [5, 1, 7]])
def test_full_attention_equals_attention_written_out(scrambled, literal_attention, close, stream, lengths):
    layer, count = scrambled(FullAttention(DIM, 2)), sum(lengths)
    x = torch.randn(2, count, DIM, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    literal = literal_attention(layer.attention)
    with torch.no_grad():
        expected = [literal(x, t, t, [(j, j) for j in range(t + 1)]) for t in range(count)]
        y, state = stream(lambda start, stop, state: layer(x[:, start:stop], state), lengths)
        close(y, torch.stack(expected, 1), 1e-11)
        close(state.values, layer.attention.v_proj(x), 1e-11)
    assert state.filled.tolist() == [count, count]


def test_states_of_full_attention_that_differ_in_length(scrambled, same):
    """Selecting drops what no row has read, joining and mixing fill up: a row is what it would be alone."""
    layer = scrambled(FullAttention(DIM, 2))
    x = torch.randn(2, 9, DIM, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    mask = torch.ones(2, 9, dtype=torch.bool)
    mask[1, 2:7] = False
    with torch.no_grad():
        _, both = layer(x, mask=mask)
        assert both.filled.tolist() == [9, 4]
        assert both.keys.shape[1] == 9
        rows = [both.select(torch.tensor([i])) for i in range(2)]
        assert [row.keys.shape[1] for row in rows] == [9, 4]
        same(rows[1], both.row(1))
        joined = FullAttentionState.cat(rows)
        for i in range(2):
            same(joined.row(i), rows[i])
        one = layer(x[:, :3])[1]
        mixed = one.where(torch.tensor([True, False]), both)
        assert mixed.keys.shape[1] == 4
        same(mixed.row(0), one.row(0))
        same(mixed.row(1), rows[1])


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
    ({"num_heads": 3}, "hidden_size=16 is not a multiple of num_heads=3"),
    ({"window": 0}, "window=0"),
    ({"window": -2}, "window=-2"),
    ({"persistent_tokens": -1}, "persistent_tokens=-1"),
])  # fmt: skip
def test_options_that_cannot_work(options, message):
    with pytest.raises(ValueError, match=message):
        SlidingWindowAttention(**{"hidden_size": DIM, "num_heads": 2, "window": 4, **options})


def test_states_of_other_windows():
    x = torch.randn(1, 3, DIM)
    _, state = SlidingWindowAttention(DIM, 2, 4)(x)
    with pytest.raises(ValueError, match="another configuration"):
        SlidingWindowAttention(DIM, 2, 5)(x, state)


def test_attention_refuses_heads_that_do_not_divide():
    with pytest.raises(ValueError, match="num_heads=5"):
        Attention(DIM, 5)
