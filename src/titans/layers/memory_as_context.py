"""MAC: the memory's answers are context for attention, and attention decides what the memory keeps."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from titans.layers.attention import Attention
from titans.layers.gating import MemoryGate
from titans.layers.mixer import Mixer, valid
from titans.layers.neural_memory import NeuralMemory
from titans.ops.grid import Layout, layout
from titans.ops.scan import group_size, scan
from titans.state import MemoryAsContextState, NeuralMemoryState


class Segment(NamedTuple):
    """The inputs of a segment, or of a part of it."""

    x: Tensor  # [B, n, D]
    query: Tensor  # [B, H_m, n, d_m], to the memory
    q: Tensor  # [B, n, D], attention's projections
    k: Tensor  # [B, n, D]
    v: Tensor  # [B, n, D]
    slots: Tensor  # [B, n], places in the segment
    mask: Tensor | None  # [B, n], bool
    complete: Tensor | bool  # [B], whether the segment ends here


class Carry(NamedTuple):
    """What a segment hands to the next, fields as in `MemoryAsContextState`."""

    memory: NeuralMemoryState
    context: list[Tensor]
    keys: Tensor
    values: Tensor


class MemoryAsContext(Mixer):
    """Retrieve, attend, update, read: the paper's MAC (semantics, section 5).

    For a segment S, with the memory as the last segment left it:

        h = M*(S W_Q)                              one retrieved token per segment token
        y = norm(Attn([persistent | h | S]))       causal: token i sees h_j and S_j for j <= i only
        M is updated with y, token by token
        o = y * sigmoid(norm(M*(y)))               each token read at the memory as of that token

    Positions are local to the segment. With `retrieved_tokens` the memory is asked that many learned queries
    instead of one per token; their answers are visible to the whole segment.

    Args:
        attention: the short-term attention with its persistent tokens.
        memory: the long-term memory, of the same width and without persistent tokens of its own.
        segment_length: tokens per segment.
        retrieved_tokens: learned queries per segment. Default: one query per token.

    Raises:
        ValueError: `segment_length` or `retrieved_tokens` is below 1.
    """

    def __init__(
        self,
        attention: Attention,
        memory: NeuralMemory,
        segment_length: int,
        retrieved_tokens: int | None = None,
    ) -> None:
        super().__init__()
        for name, value in (("segment_length", segment_length), ("retrieved_tokens", retrieved_tokens)):
            if value is not None and value < 1:
                raise ValueError(f"{name}={value} must be at least 1")
        self.dim, self.segment_length = memory.dim, segment_length
        self.attention, self.memory = attention, memory
        self.gate = MemoryGate(memory.dim)
        self.retrieval = nn.Parameter(torch.empty(retrieved_tokens, memory.dim)) if retrieved_tokens else None
        self.retrieved = retrieved_tokens or segment_length
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise the learned queries."""
        if self.retrieval is not None:
            nn.init.normal_(self.retrieval)

    def empty_state(self, batch_size: int) -> MemoryAsContextState:
        """Return the state before the first token."""
        memory = self.memory.empty_state(1)
        stored = self.segment_length if self.retrieval is not None else self.segment_length + self.retrieved
        buffer = self.attention.split_heads(self.attention.key.weight.new_zeros(1, stored, self.dim))
        state = MemoryAsContextState(memory, memory.memory.weights, memory.query_tail, buffer, buffer, 0)
        return state.expand(batch_size)

    def mix(
        self, x: Tensor, state: MemoryAsContextState, lengths: Tensor | None
    ) -> tuple[Tensor, MemoryAsContextState]:
        """Run segment after segment; see `Mixer.mix`."""
        plan = layout(state.offset, valid(x, lengths), x.shape[0], x.shape[1], self.segment_length, x.device)
        query, tail = self.memory.queries(x, state.query_tail, lengths)
        attention = self.attention
        inputs = [
            plan.place(y, 1)
            for y in (x, query.transpose(1, 2), attention.query(x), attention.key(x), attention.value(x))
        ]
        segments = self._segments(plan, inputs, state.offset)
        size = group_size(len(segments))
        groups = [segments[i : i + size] for i in range(0, len(segments), size)]
        carry = Carry(state.memory, state.context, state.keys, state.values)
        carry, outputs = scan(self._group, carry, groups, recompute=len(groups) > 1)
        y = plan.take(torch.cat([y for group in outputs for y in group], 1), 1)
        return y, MemoryAsContextState(carry.memory, carry.context, tail, carry.keys, carry.values, plan.end)

    def _segments(self, plan: Layout, inputs: list[Tensor], offset: int | Tensor) -> list[Segment]:
        """Cut the laid-out inputs `[B, M, ...]` into segments."""
        segments = []
        batch, device = inputs[0].shape[0], inputs[0].device
        for start, size, count, complete in plan.spans:
            first: int | Tensor = 0
            if plan.source is None:  # not moved onto the grid: the first token's place is the offset itself
                first = (offset + start) % self.segment_length
            slots = torch.as_tensor(first, device=device).reshape(-1, 1) + torch.arange(size, device=device)
            for i in range(count):
                x, query, q, k, v = (y.narrow(1, start + i * size, size) for y in inputs)
                mask = None if plan.mask is None else plan.mask.narrow(1, start + i * size, size)
                done = complete if isinstance(complete, bool) else complete[:, i]
                parts = (x, query.transpose(1, 2), q, k, v, slots.expand(batch, -1), mask, done)
                segments.append(Segment(*parts))
        return segments

    def _group(self, carry: Carry, segments: list[Segment]) -> tuple[Carry, list[Tensor]]:
        outputs = []
        for segment in segments:
            carry, y = self._segment(carry, segment)
            outputs.append(y)
        return carry, outputs

    def _segment(self, carry: Carry, s: Segment) -> tuple[Carry, Tensor]:
        """Retrieve, attend, update, read."""
        y, keys, values = self._attend(carry, s)
        m, memory = self.memory.advance(y, carry.memory, s.mask)
        if isinstance(s.complete, bool):
            if s.complete:
                carry = carry._replace(context=memory.memory.weights)
                keys, values = torch.zeros_like(keys), torch.zeros_like(values)
        else:
            rows = s.complete[:, None, None, None]
            new = [torch.where(rows, w, c) for w, c in zip(memory.memory.weights, carry.context, strict=True)]
            carry = carry._replace(context=new)
            keys, values = torch.where(rows, 0.0, keys), torch.where(rows, 0.0, values)
        return Carry(memory, carry.context, keys, values), self.gate(y, m)

    def _attend(self, carry: Carry, s: Segment) -> tuple[Tensor, Tensor, Tensor]:
        """Attend to persistent, retrieved and own tokens; returns y `[B, n, D]` and the buffers with this part in."""
        attention, slots = self.attention, s.slots.unsqueeze(1)  # [B, 1, n]
        own = slots + self.retrieved
        q = attention.rotate(attention.split_heads(s.q), own)
        k = attention.rotate(attention.split_heads(s.k), own)
        v = attention.split_heads(s.v)
        here = torch.arange(self.segment_length, device=slots.device)
        visible = here <= slots.unsqueeze(-1)  # [B, 1, n, S]
        if self.retrieval is None:
            h = self.memory.recall(s.query, s.x, carry.context)
            retrieved = attention.rotate(attention.split_heads(attention.key(h)), slots)
            places = torch.cat([slots, own], 2)
            keys = _store(carry.keys, torch.cat([retrieved, k], 2), places, s.mask)
            values = _store(carry.values, torch.cat([attention.split_heads(attention.value(h)), v], 2), places, s.mask)
            y = attention.attend(q, keys.to(q.dtype), values.to(q.dtype), torch.cat([visible, visible], -1))
        else:
            keys, values = _store(carry.keys, k, slots, s.mask), _store(carry.values, v, slots, s.mask)
            retrieved, answers = self._ask(carry.context, len(s.x))
            seen = torch.cat([visible.new_ones(*visible.shape[:3], self.retrieved), visible], -1)
            all_keys, all_values = (torch.cat([a, b.to(a.dtype)], 2) for a, b in ((retrieved, keys), (answers, values)))
            y = attention.attend(q, all_keys, all_values, seen)
        return self.gate.attention_norm(attention.output(y)), keys, values

    def _ask(self, context: list[Tensor], batch: int) -> tuple[Tensor, Tensor]:
        """Retrieve with the learned queries: keys and values of the answers, `[B, H, R, d]`."""
        assert self.retrieval is not None
        x = self.retrieval.expand(batch, -1, -1)
        tail = self.memory.empty_state(batch).query_tail
        h = self.memory.recall(self.memory.queries(x, tail, None)[0], x, context)
        attention = self.attention
        keys = attention.rotate(attention.split_heads(attention.key(h)), torch.arange(h.shape[1], device=h.device))
        return keys, attention.split_heads(attention.value(h))


def _store(buffer: Tensor, new: Tensor, places: Tensor, mask: Tensor | None) -> Tensor:
    """Put `new` `[B, H, m, d]` at `places` `[B, 1, m]` of the buffer, except where `mask` `[B, n]` is False."""
    index = places.unsqueeze(-1).expand_as(new)
    new = new.to(buffer.dtype)
    if mask is not None:
        mask = mask.repeat(1, new.shape[2] // mask.shape[1])[:, None, :, None]
        new = torch.where(mask, new, buffer.gather(2, index))
    return buffer.scatter(2, index, new)
