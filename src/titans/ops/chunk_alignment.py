"""Align ragged or resumed sequences to chunk boundaries."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from titans.ops.tracing import is_dynamic, require_static_length


class Span(NamedTuple):
    """Consecutive chunks of equal size.

    Args:
        start: first position.
        size: tokens per chunk.
        chunks: number of chunks.
        complete: whether the stream's chunk ends there: one answer for all, or `[B, chunks]`.
    """

    start: int
    size: int
    chunks: int
    complete: bool | Tensor

    def ends(self) -> list[bool | Tensor]:
        """Tell for each chunk whether the stream's chunk ends there: one answer for all rows, or `[B]`."""
        if isinstance(self.complete, bool):
            return [self.complete] * self.chunks
        return list(self.complete.unbind(1))

    def cut(self, x: Tensor, dim: int) -> Tensor:
        """Cut these chunks out of `x`: dimension `dim` becomes two, `[chunks, size]`."""
        y: Tensor = x.narrow(dim, self.start, self.size * self.chunks).unflatten(dim, (self.chunks, self.size))
        return y


class ChunkAlignment(NamedTuple):
    """Where the tokens of one call lie in the chunks of their streams.

    Rows that have read different numbers of tokens, or hold padding, are first moved so that the chunk
    boundaries of all rows coincide; `align` and `unalign` move tensors there and back.

    Args:
        spans: the chunks, in order.
        end: tokens of the last, open chunk read after this call: an integer, or `[B]`.
        mask: `[B, M]`, which aligned positions hold a token; None where all do.
        source: `[B, M]`, the token at each aligned position (T: none); None where nothing moves.
        target: `[B, T]`, the position of each token.
    """

    spans: list[Span]
    end: int | Tensor
    mask: Tensor | None = None
    source: Tensor | None = None
    target: Tensor | None = None

    def align(self, x: Tensor, dim: int) -> Tensor:
        """Align `x` `[B, ..., T, ...]` along `dim`; positions without a token are zero."""
        if self.source is None:
            return x if self.mask is None else x.masked_fill(~_view(self.mask, x, dim), 0)
        empty = torch.zeros_like(x.narrow(dim, 0, 1))
        return _gather(torch.cat([x, empty], dim), self.source, dim)

    def unalign(self, x: Tensor, dim: int) -> Tensor:
        """Bring the aligned `x` back to the order of the call; padding is whatever lies at its position."""
        return x if self.target is None else _gather(x, self.target, dim)


def chunk_alignment(
    offset: int | Tensor,
    mask: Tensor | None,
    batch: int,
    tokens: int,
    size: int,
    device: torch.device,
    loops: bool = False,
) -> ChunkAlignment:
    """Align T tokens to chunks, starting `offset` tokens into a chunk.

    Decisions depend on shapes only, never on values, so that nothing waits for an accelerator.

    Args:
        offset: tokens already read of the open chunk: an integer for all rows, or `[B]`.
        mask: `[B, T]`, bool, False for padding; None for none.
        batch: B.
        tokens: T, at least 1.
        size: tokens per chunk.
        device: where positions are computed.
        loops: the caller can run chunks as a loop of a graph, whose number it leaves open.

    Returns:
        Where each token lies.
    """
    opened = loops and is_dynamic(tokens, *([offset] if isinstance(offset, int) else []))
    if isinstance(offset, int) and mask is None and not opened:
        require_static_length(tokens)
        return ChunkAlignment(_spans(offset, tokens, size), (offset + tokens) % size)
    first = torch.full((batch,), offset, device=device) if isinstance(offset, int) else offset
    count = first.new_full((batch,), tokens) if mask is None else mask.sum(1)
    stop = first + count
    if not opened and tokens == 1:
        return ChunkAlignment([Span(0, 1, 1, ((stop == size) & (count > 0)).unsqueeze(1))], stop % size, mask)
    most = offset if isinstance(offset, int) and not opened else size - 1  # tokens that a chunk may hold already
    chunks = (most + tokens + size - 1) // size
    rank = torch.arange(tokens, device=device).expand(batch, -1) if mask is None else mask.cumsum(1) - 1
    target = (first.unsqueeze(1) + rank).clamp(min=0)
    kept = target if mask is None else torch.where(mask, target, chunks * size)
    source = target.new_full((batch, chunks * size + 1), tokens)
    source = source.scatter(1, kept, torch.arange(tokens, device=device).expand(batch, -1))[:, :-1]
    ends = torch.arange(1, chunks + 1, device=device) * size
    complete = stop.unsqueeze(1) >= ends
    return ChunkAlignment([Span(0, size, chunks, complete)], stop % size, source < tokens, source, target)


def renew(old: list[Tensor], new: list[Tensor], end: bool | Tensor) -> list[Tensor]:
    """Replace what is kept for the length of a chunk, in the rows whose chunk ends.

    Args:
        old: tensors `[B, ...]` of four dimensions.
        new: what replaces them.
        end: one answer for all rows, or `[B]`, bool.

    Returns:
        `new` in the rows that end a chunk, `old` in the others.
    """
    if isinstance(end, bool):
        return new if end else old
    rows = end[:, None, None, None]
    return [torch.where(rows, n, o) for n, o in zip(new, old, strict=True)]


def _spans(offset: int, tokens: int, size: int) -> list[Span]:
    """Cut at the chunk boundaries: the rest of the open chunk, whole chunks, the start of the next."""
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
