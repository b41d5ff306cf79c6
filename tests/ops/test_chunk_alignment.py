"""Sequences aligned stream to chunks: every token once, in order, at its place in the chunk."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from titans.ops.chunk_alignment import chunk_alignment


@st.composite
def calls(draw):
    """Offset, mask, batch, tokens and chunk size of one call."""
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
def test_every_token_once(call):
    offset, mask, batch, tokens, size = call
    alignment = chunk_alignment(*call, torch.device("cpu"))
    offsets = torch.as_tensor(offset).expand(batch).tolist()
    real = torch.ones(batch, tokens, dtype=torch.bool) if mask is None else mask
    numbers = torch.arange(1, tokens + 1).expand(batch, -1)
    aligned = alignment.align(numbers, 1)
    unaligned = alignment.unalign(aligned, 1)
    assert torch.equal(unaligned[real], numbers[real])

    # The spans tile the aligned stream; each chunk's end is known.
    start, position = 0, 0
    chunks = []  # (positions of the chunk, whether each row completes it)
    for span in alignment.spans:
        assert span.start == start
        start += span.size * span.chunks
        assert torch.equal(span.cut(aligned, 1).flatten(1), aligned[:, span.start : start])
        complete = torch.as_tensor(span.complete).expand(batch, span.chunks)
        for i in range(span.chunks):
            chunks.append((range(position, position + span.size), complete[:, i]))
            position += span.size
    assert position == aligned.shape[1]

    held = torch.ones_like(aligned, dtype=torch.bool) if alignment.mask is None else alignment.mask
    assert (aligned[~held] == 0).all()
    for row in range(batch):
        read, seen, ends = offsets[row], [], 0
        for positions, complete in chunks:
            for p in positions:
                if held[row, p]:
                    seen.append(int(aligned[row, p]))
                    read += 1
            ended = read == (ends + 1) * size
            assert bool(complete[row]) == ended
            ends += ended
            assert read <= (ends + 1) * size, "tokens of two of the stream's chunks in one"
        assert seen == numbers[row][real[row]].tolist()
        assert int(torch.as_tensor(alignment.end).expand(batch)[row]) == read % size


def test_gradients_flow_through_aligning_and_unaligning():
    mask = torch.tensor([[True, False, True], [False, True, True]])
    x = torch.randn(2, 3, 2, dtype=torch.float64, requires_grad=True)
    alignment = chunk_alignment(torch.tensor([1, 2]), mask, 2, 3, 4, x.device)
    y = torch.where(mask.unsqueeze(-1), alignment.unalign(alignment.align(x, 1) * 3, 1), 0.0)
    assert torch.equal(y, torch.where(mask.unsqueeze(-1), 3 * x, 0.0))
    (gradient,) = torch.autograd.grad(y.sum(), x)
    assert torch.equal(gradient, 3.0 * mask.unsqueeze(-1).expand(-1, -1, 2))
