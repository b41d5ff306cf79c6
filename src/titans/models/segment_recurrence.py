"""RMT: a transformer that reads segment after segment and hands itself memory tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from titans.models.configuration import StackConfig
from titans.ops.chunk_alignment import ChunkAlignment, chunk_alignment
from titans.ops.state import State

States = list[list[State]]  # of each block's mixers
Hidden = list[
    Tensor
]  # what the caller wants of the blocks: the normalised outputs, or all hidden states before them, too
RunBlocks = Callable[[Tensor, States | None, Tensor | None], tuple[Hidden, States]]
Rows = bool | Tensor  # one answer for all rows, or one for each, `[B]`


class SegmentState(State):
    """What RMT carries besides the keys and values of the open segment.

    Args:
        memory: the memory tokens that the last segment left, `[B, m, D]`.
        offset: tokens read of the current segment: one integer, or int64 `[B]`.
    """

    memory: Tensor
    offset: int | Tensor


class Part(NamedTuple):
    """A segment, or the part of it that one call holds: tokens `[B, n, D]`, those that count `[B, n]`, where it is."""

    x: Tensor
    mask: Tensor | None
    start: Rows
    end: Rows


class SegmentRecurrence(nn.Module):
    """Recurrent memory transformer (Bulatov, Kuratov & Burtsev, 2022, arXiv 2207.06881, section 3.2).

    Of a segment S of tokens, with the m memory tokens M that the last segment left:

        [. | y | M'] = blocks([M | S | M])        causal: the first copy is read by all, the second reads all

    y is what the model puts out, and M', the normalised outputs at the second copy, is the next segment's memory. The
    first one is learned. Nothing else passes from segment to segment. Positions count from the first memory token.

    A segment is written as soon as its last token has been read; so its first token already sees the memory.

    Args:
        config: the configuration.
    """

    component: ClassVar[str] = "memory"

    def __init__(self, config: StackConfig) -> None:
        super().__init__()
        self.segment_length = config.segment_length
        self.view = f"its segment of {config.segment_length:,} tokens, and {config.num_memory_tokens} memory tokens"
        self.memory = nn.Parameter(torch.empty(config.num_memory_tokens, config.hidden_size))
        self.reset_parameters()

    def state_limits(self) -> dict[str, int]:
        """Return the last place of a segment; see `titans.layers.mixer.Mixer.state_limits`."""
        return {"offset": self.segment_length - 1}

    def reset_parameters(self) -> None:
        """Initialise the first memory on the scale of normalised outputs."""
        nn.init.normal_(self.memory)

    def initial_state(self, batch_size: int) -> SegmentState:
        """Return the state before the first token of `batch_size` streams."""
        return SegmentState(self.memory.clone().expand(batch_size, -1, -1), 0)

    def forward(
        self, run: RunBlocks, x: Tensor, states: States, segment: SegmentState, mask: Tensor | None, fresh: States
    ) -> tuple[Hidden, States, SegmentState]:
        """Read the next tokens of a stream, segment by segment.

        Args:
            run: the blocks and the final norm, whose outputs come last.
            x: tokens `[B, T, D]`.
            states: of the blocks, in the open segment.
            segment: the memory tokens and the place in the segment.
            mask: `[B, T]`, bool, False for padding; None for none.
            fresh: the states in which the blocks start a segment.

        Returns:
            What `run` puts out, `[B, T, D]` each, and both states after the last token.
        """
        alignment = chunk_alignment(segment.offset, mask, x.shape[0], x.shape[1], self.segment_length, x.device)
        memory, parts = segment.memory, []
        for part in _parts(alignment, alignment.align(x, 1), segment.offset):
            hidden, memory, states = _read(run, part, memory.to(x.dtype), states, fresh)
            parts.append(hidden)
        outputs = [alignment.unalign(torch.cat(pieces, 1), 1) for pieces in zip(*parts, strict=True)]
        return outputs, states, SegmentState(memory.to(segment.memory.dtype), alignment.end)


def _parts(alignment: ChunkAlignment, x: Tensor, offset: int | Tensor) -> list[Part]:
    """Cut the aligned tokens `[B, M, D]` into segments."""
    sizes = [span.size for span in alignment.spans for _ in range(span.chunks)]
    ends = [end for span in alignment.spans for end in span.ends()]
    if alignment.mask is None and isinstance(offset, int):
        starts: list[Rows] = [offset == 0 or i > 0 for i in range(len(sizes))]
        return [Part(y, None, *at) for y, *at in zip(x.split(sizes, 1), starts, ends, strict=True)]
    mask = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device) if alignment.mask is None else alignment.mask
    masks = mask.split(sizes, 1)
    starts = [here[:, 0] for here in masks]  # aligned tokens: a segment's first is at a chunk's first place
    if alignment.source is None:  # a single token, not moved
        starts = [starts[0] & (torch.as_tensor(offset, device=x.device) == 0)]
    return [Part(*part) for part in zip(x.split(sizes, 1), masks, starts, ends, strict=True)]


def _read(run: RunBlocks, part: Part, memory: Tensor, states: States, fresh: States) -> tuple[Hidden, Tensor, States]:
    """Read a part of a segment, with the memory before it where it starts and after it where it ends."""
    (x, mask, start, end), count = part, memory.shape[1]
    pieces = [(memory, start), (x, True), (memory, end)]
    pieces = [(y, rows) for y, rows in pieces if rows is not False]
    if mask is not None:
        masks = [mask if y is x else _rows(rows, y) for y, rows in pieces]
        mask = torch.cat(masks, 1)
    hidden, states = run(torch.cat([y for y, _ in pieces], 1), states, mask)
    first = 0 if start is False else count
    outputs = [y[:, first : first + x.shape[1]] for y in hidden]
    if end is False:
        return outputs, memory, states
    written = hidden[-1][:, -count:]
    if end is True:
        return outputs, written, fresh
    return outputs, torch.where(end.view(-1, 1, 1), written, memory), _where(end, fresh, states)


def _rows(rows: Rows, y: Tensor) -> Tensor:
    """Make a mask `[B, m]` for `y` `[B, m, D]` of an answer for all rows, or for each."""
    return torch.as_tensor(rows, device=y.device).view(-1, 1).expand(y.shape[:2])


def _where(rows: Tensor, a: States, b: States) -> States:
    return [[x.where(rows, y) for x, y in zip(*pair, strict=True)] for pair in zip(a, b, strict=True)]
