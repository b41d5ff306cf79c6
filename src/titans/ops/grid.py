"""Laying a stream that stops and starts anywhere onto blocks of equal size."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from titans.ops.calls import left_open, refuse_open


class Span(NamedTuple):
    """Consecutive blocks of equal size.

    Args:
        start: first position.
        size: tokens per block.
        blocks: number of blocks.
        complete: whether each block ends on a block boundary of the stream: one answer for all, or `[B,
            count]`.
    """

    start: int
    size: int
    blocks: int
    complete: bool | Tensor

    def ends(self) -> list[bool | Tensor]:
        """Tell for each block whether the stream's block ends there: one answer for all rows, or `[B]`."""
        if isinstance(self.complete, bool):
            return [self.complete] * self.blocks
        return list(self.complete.unbind(1))

    def cut(self, x: Tensor, dim: int) -> Tensor:
        """Cut these blocks out of `x`: dimension `dim` becomes two, `[blocks, size]`."""
        y: Tensor = x.narrow(dim, self.start, self.size * self.blocks).unflatten(dim, (self.blocks, self.size))
        return y


class Layout(NamedTuple):
    """Where the tokens of one call lie in the blocks of the stream.

    Rows that have read different numbers of tokens, or hold padding, are first moved so that the block
    boundaries of all rows coincide; `place` and `take` move tensors there and back.

    Args:
        spans: the blocks, in order.
        end: tokens of the last, open block read after this call: an integer, or `[B]`.
        mask: `[B, M]`, which laid-out positions hold a token; None where all do.
        source: `[B, M]`, the token at each laid-out position (N: none); None where nothing moves.
        target: `[B, N]`, the position of each token.
    """

    spans: list[Span]
    end: int | Tensor
    mask: Tensor | None = None
    source: Tensor | None = None
    target: Tensor | None = None

    def place(self, x: Tensor, dim: int) -> Tensor:
        """Lay out `x` `[B, ..., N, ...]` along `dim`; positions without a token are zero."""
        if self.source is None:
            return x if self.mask is None else x.masked_fill(~_view(self.mask, x, dim), 0)
        empty = torch.zeros_like(x.narrow(dim, 0, 1))
        return _gather(torch.cat([x, empty], dim), self.source, dim)

    def take(self, x: Tensor, dim: int) -> Tensor:
        """Bring the laid-out `x` back to the order of the call; padding is whatever lies at its position."""
        return x if self.target is None else _gather(x, self.target, dim)


def layout(
    offset: int | Tensor,
    mask: Tensor | None,
    batch: int,
    tokens: int,
    size: int,
    device: torch.device,
    loops: bool = False,
) -> Layout:
    """Lay N tokens onto blocks, starting `offset` tokens into a block.

    Decisions depend on shapes only, never on values, so that nothing waits for an accelerator.

    Args:
        offset: tokens already read of the open block: an integer for all rows, or `[B]`.
        mask: `[B, N]`, bool, False for padding; None for none.
        batch: B.
        tokens: N, at least 1.
        size: tokens per block.
        device: where positions are computed.
        loops: the caller can run blocks as a loop of a graph, whose number it leaves open.

    Returns:
        The layout.
    """
    opened = loops and left_open(tokens, *([offset] if isinstance(offset, int) else []))
    if isinstance(offset, int) and mask is None and not opened:
        refuse_open(tokens)
        return Layout(_spans(offset, tokens, size), (offset + tokens) % size)
    first = torch.full((batch,), offset, device=device) if isinstance(offset, int) else offset
    count = first.new_full((batch,), tokens) if mask is None else mask.sum(1)
    stop = first + count
    if not opened and tokens == 1:
        return Layout([Span(0, 1, 1, ((stop == size) & (count > 0)).unsqueeze(1))], stop % size, mask)
    most = offset if isinstance(offset, int) and not opened else size - 1  # tokens that a block may hold already
    blocks = (most + tokens + size - 1) // size
    rank = torch.arange(tokens, device=device).expand(batch, -1) if mask is None else mask.cumsum(1) - 1
    target = (first.unsqueeze(1) + rank).clamp(min=0)
    kept = target if mask is None else torch.where(mask, target, blocks * size)
    source = target.new_full((batch, blocks * size + 1), tokens)
    source = source.scatter(1, kept, torch.arange(tokens, device=device).expand(batch, -1))[:, :-1]
    ends = torch.arange(1, blocks + 1, device=device) * size
    complete = stop.unsqueeze(1) >= ends
    return Layout([Span(0, size, blocks, complete)], stop % size, source < tokens, source, target)


def renew(old: list[Tensor], new: list[Tensor], end: bool | Tensor) -> list[Tensor]:
    """Replace what is kept for the length of a block, in the rows whose block ends.

    Args:
        old: tensors `[B, ...]` of four dimensions.
        new: what replaces them.
        end: one answer for all rows, or `[B]`, bool.

    Returns:
        `new` in the rows that end a block, `old` in the others.
    """
    if isinstance(end, bool):
        return new if end else old
    rows = end[:, None, None, None]
    return [torch.where(rows, n, o) for n, o in zip(new, old, strict=True)]


def _spans(offset: int, tokens: int, size: int) -> list[Span]:
    """Cut at the block boundaries: the rest of the open block, whole blocks, the start of the next."""
    head = min(tokens, (size - offset) % size)
    whole, tail = divmod(tokens - head, size)
    spans = [Span(0, head, 1, (offset + head) % size == 0)] if head else []
    if whole:
        spans.append(Span(head, size, whole, True))
    if tail:
        spans.append(Span(tokens - tail, tail, 1, False))
    return spans


def _gather(x: Tensor, index: Tensor, dim: int) -> Tensor:
    sizes = list(x.shape)
    sizes[dim] = index.shape[1]
    return x.gather(dim, _view(index, x, dim).expand(sizes))


def _view(y: Tensor, x: Tensor, dim: int) -> Tensor:
    """Shape `y` `[B, M]` to broadcast against `x` `[B, ..., M, ...]`, M in dimension `dim`."""
    shape = [1] * x.dim()
    shape[0], shape[dim] = y.shape
    return y.view(shape)
