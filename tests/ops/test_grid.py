"""Streams laid onto blocks: every token once, in order, at its place in the block."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from titans.ops.grid import layout


@st.composite
def calls(draw):
    """Offset, mask, batch, tokens and block size of one call."""
    size, batch, tokens = draw(st.integers(1, 6)), draw(st.integers(1, 3)), draw(st.integers(1, 15))
    inside = st.integers(0, size - 1)
    offset = draw(st.one_of(inside, st.lists(inside, min_size=batch, max_size=batch)))
    row = st.lists(st.booleans(), min_size=tokens, max_size=tokens)
    mask = draw(st.one_of(st.none(), st.lists(row, min_size=batch, max_size=batch)))
    return (
        offset if isinstance(offset, int) else torch.tensor(offset),
        None if mask is None else torch.tensor(mask),
        batch,
        tokens,
        size,
    )


@settings(max_examples=150)
@given(calls())
def test_layout(call):
    offset, mask, batch, tokens, size = call
    plan = layout(*call, torch.device("cpu"))
    offsets = torch.as_tensor(offset).expand(batch).tolist()
    real = torch.ones(batch, tokens, dtype=torch.bool) if mask is None else mask
    numbers = torch.arange(1, tokens + 1).expand(batch, -1)
    placed = plan.place(numbers, 1)
    taken = plan.take(placed, 1)
    assert torch.equal(taken[real], numbers[real])

    # The spans tile the laid-out stream; each block's end is known.
    start, position = 0, 0
    blocks = []  # (positions of the block, whether each row completes it)
    for span in plan.spans:
        assert span.start == start
        start += span.size * span.blocks
        assert torch.equal(span.cut(placed, 1).flatten(1), placed[:, span.start : start])
        complete = torch.as_tensor(span.complete).expand(batch, span.blocks)
        for i in range(span.blocks):
            blocks.append((range(position, position + span.size), complete[:, i]))
            position += span.size
    assert position == placed.shape[1]

    held = torch.ones_like(placed, dtype=torch.bool) if plan.mask is None else plan.mask
    assert (placed[~held] == 0).all()
    for row in range(batch):
        read, seen, ends = offsets[row], [], 0
        for positions, complete in blocks:
            for p in positions:
                if held[row, p]:
                    seen.append(int(placed[row, p]))
                    read += 1
            ended = read == (ends + 1) * size
            assert bool(complete[row]) == ended
            ends += ended
            assert read <= (ends + 1) * size, "a block holds tokens of two chunks"
        assert seen == numbers[row][real[row]].tolist()
        assert int(torch.as_tensor(plan.end).expand(batch)[row]) == read % size


def test_gradients_flow_through_placing_and_taking():
    mask = torch.tensor([[True, False, True], [False, True, True]])
    x = torch.randn(2, 3, 2, dtype=torch.float64, requires_grad=True)
    plan = layout(torch.tensor([1, 2]), mask, 2, 3, 4, x.device)
    y = torch.where(mask.unsqueeze(-1), plan.take(plan.place(x, 1) * 3, 1), 0.0)
    assert torch.equal(y, torch.where(mask.unsqueeze(-1), 3 * x, 0.0))
    (gradient,) = torch.autograd.grad(y.sum(), x)
    assert torch.equal(gradient, 3.0 * mask.unsqueeze(-1).expand(-1, -1, 2))
