"""MAC: the memory's answers are context for attention, and attention decides what the memory keeps."""

from __future__ import annotations

from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn

from titans.layers.attention import Attention, PaperAttention
from titans.layers.gating import MemoryGate
from titans.layers.mixer import Mixer, bounded, valid
from titans.layers.neural_memory import NeuralMemory, NeuralMemoryState
from titans.layers.projection import ConvolvedProjection
from titans.layers.registry import register_mixer
from titans.ops.chunk_alignment import ChunkAlignment, chunk_alignment, renew
from titans.ops.scan import group_size, scan
from titans.ops.state import State

SEGMENTS = 32  # recomputed together at least; a segment costs far more time than a chunk of the memory alone


class MemoryAsContextState(State):
    """State of `MemoryAsContext`.

    Args:
        memory: the memory as of the last token.
        context: the memory's weights as the last segment left them, L tensors `[B, H, d_in, d_out]`.
        query_conv_state: last inputs of the retrieval's convolution, `[B, 3, D]`; None without.
        keys: keys of the current segment's retrieved and own tokens, `[B, H, 2 S, d]`; with learned queries, whose
            answers are not stored, of its own tokens only, `[B, H, S, d]`.
        values: their values.
        offset: tokens read of the current segment: one integer, or int64 `[B]`.
        conv_state: last inputs of the attention's convolution, `[B, 3, 3 D]`; None without one.
    """

    memory: NeuralMemoryState
    context: list[Tensor]
    query_conv_state: Tensor | None
    keys: Tensor
    values: Tensor
    offset: int | Tensor
    conv_state: Tensor | None = None


class Segment(NamedTuple):
    """The inputs of a segment, or of a part of it."""

    query: Tensor  # [B, n, H_m, d_m], to the memory
    q: Tensor  # [B, H, n, d], placed
    k: Tensor  # [B, H, n, d], placed
    v: Tensor  # [B, H, n, d]
    x: Tensor  # [B, n, D]
    slots: Tensor  # [B, n], places in the segment
    mask: Tensor | None  # [B, n], bool
    end: Tensor | bool  # [B], whether the segment ends here


class Carry(NamedTuple):
    """What a segment hands to the next, fields as in `MemoryAsContextState`."""

    memory: NeuralMemoryState
    context: list[Tensor]
    keys: Tensor
    values: Tensor


class MemoryAsContext(Mixer):
    """Retrieve, attend, update, read: the paper's MAC (docs/semantics.md, section 5).

    For a segment S, with the memory as the last segment left it:

        h = norm(M*(S W_Q))                        one retrieved token per segment token
        y = norm(S + Attn([persistent | h | S]))   causal: token i sees h_j and S_j for j <= i only
        M is updated with y, token by token
        o = (a y + b) * sigmoid(norm(M*(y)))       each token read at the memory as of that token; a, b: `MemoryGate`

    In the paper's form (`paper_form`) nothing is added or normalised, and the memory's answer is the gate:
    `h = M*(S W_Q)`, `y = Attn([persistent | h | S])`, `o = y * M*(y)`.

    Positions are local to the segment; a retrieved token has the position of the token it was retrieved for. With
    `retrieved_tokens` the memory is asked that many learned queries instead of one per token; their answers have no
    position and are visible to the whole segment.

    Args:
        attention: the short-term attention with its persistent tokens.
        memory: the long-term memory, of the same width and without persistent tokens of its own.
        segment_length: tokens per segment.
        retrieved_tokens: learned queries per segment. Default: one query per token.
        paper_form: see above. Default False.

    Raises:
        ValueError: `segment_length` or `retrieved_tokens` is below 1.
    """

    def __init__(
        self,
        attention: Attention,
        memory: NeuralMemory,
        segment_length: int,
        retrieved_tokens: int | None = None,
        paper_form: bool = False,
    ) -> None:
        super().__init__()
        for name, value in (("segment_length", segment_length), ("retrieved_tokens", retrieved_tokens)):
            if value is not None and value < 1:
                raise ValueError(f"{name}={value} must be at least 1")
        self.hidden_size, self.segment_length = memory.hidden_size, segment_length
        self.attention, self.memory = attention, memory
        self.gate = None if paper_form else MemoryGate(memory.hidden_size)
        # Not the memory's own queries: those are made of y, these of S.
        self.retrieval_proj = ConvolvedProjection(
            memory.hidden_size, memory.num_heads, ("none",), memory.qkv_proj.conv_weight is not None
        )
        head_dim = memory.hidden_size // memory.num_heads
        self.retrieval_norm = None if paper_form else nn.RMSNorm(head_dim, eps=1e-6)
        self.retrieval = nn.Parameter(torch.empty(retrieved_tokens, memory.hidden_size)) if retrieved_tokens else None
        self.retrieved = retrieved_tokens or segment_length
        persistent = attention.persistent_tokens
        self.view = f"its segment of {segment_length:,} tokens" + (
            f", and {persistent} persistent ones" if persistent else ""
        )
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise the learned queries."""
        if self.retrieval is not None:
            nn.init.normal_(self.retrieval)

    @classmethod
    def from_config(cls, config: Any, **options: Any) -> Self:
        """Build the layer of a model; see `Mixer.from_config`."""
        sizes = config.hidden_size, config.num_attention_heads, config.num_persistent_tokens
        memory = NeuralMemory.from_config(config, persistent_tokens=0)
        options = {"retrieved_tokens": config.num_retrieved_tokens, "paper_form": config.paper_form, **options}
        attention = PaperAttention if config.paper_form else Attention
        return cls(attention(*sizes, config.rope_theta), memory, config.segment_length, **options)

    def flops(self, context: int) -> float:
        """Count 4 D for each key in view, 2 P to read the context, and the keys and values of what it answers."""
        in_view = retrieved = (self.segment_length + 1) / 2
        asked = 1.0  # answers for each token
        if self.retrieval is not None:
            asked, retrieved = self.retrieved / self.segment_length, self.retrieved
        keys_and_values = 2 * self.hidden_size**2
        attended = 4 * self.hidden_size * (in_view + retrieved + self.attention.persistent_tokens)
        return attended + asked * (2 * self.memory.size + 2 * keys_and_values)

    def state_limits(self) -> dict[str, int]:
        """Return the last place of a segment, and the memory's; see `Mixer.state_limits`."""
        memory = {f"memory.{name}": n for name, n in self.memory.state_limits().items()}
        return {"offset": self.segment_length - 1, **memory}

    def empty_state(self, batch_size: int) -> MemoryAsContextState:
        """Return the state before the first token."""
        memory = self.memory.empty_state(1)
        stored = self.segment_length * (1 if self.retrieval is not None else 2)
        buffer = self.attention.split_heads(self.attention.empty_buffer(1, stored))
        conv_states = self.retrieval_proj.initial_conv_state(), self.attention.initial_conv_state()
        state = MemoryAsContextState(memory, memory.memory.weights, conv_states[0], buffer, buffer, 0, conv_states[1])
        return state.expand(batch_size)

    def mix(
        self, x: Tensor, state: MemoryAsContextState, lengths: Tensor | None
    ) -> tuple[Tensor, MemoryAsContextState]:
        """Run segment after segment; see `Mixer.mix`."""
        x = bounded(x)
        alignment = chunk_alignment(
            state.offset, valid(x, lengths), x.shape[0], x.shape[1], self.segment_length, x.device
        )
        (query,), query_conv_state = self.retrieval_proj(x, state.query_conv_state, lengths)
        qkv, conv_state = self.attention.project(x, state.conv_state, lengths)
        parts = [alignment.align(y, 1) for y in (query, *qkv, x)]
        segments = self._segments(alignment, parts, state.offset)
        size = group_size(len(segments), SEGMENTS)
        groups = [segments[i : i + size] for i in range(0, len(segments), size)]
        carry = Carry(state.memory, state.context, state.keys, state.values)
        carry, outputs = scan(self._group, carry, groups, recompute=len(groups) > 1)
        y = alignment.unalign(torch.cat([y for group in outputs for y in group], 1), 1)
        kept = (carry.memory, carry.context, query_conv_state, carry.keys, carry.values)
        return y, MemoryAsContextState(*kept, alignment.end, conv_state)

    def _segments(self, alignment: ChunkAlignment, aligned: list[Tensor], offset: int | Tensor) -> list[Segment]:
        """Place the aligned query, q, k, v and x, `[B, M, ...]` each, and cut everything into segments."""
        attention, (query, q, k, v, x) = self.attention, aligned
        first = offset if alignment.source is None else 0  # aligned tokens start with a segment
        here = torch.arange(x.shape[1], device=x.device)
        slots = ((torch.as_tensor(first, device=x.device).reshape(-1, 1) + here) % self.segment_length).expand(
            len(x), -1
        )
        q, k = (attention.apply_rope(attention.split_heads(y), slots.unsqueeze(1)) for y in (q, k))
        v = attention.split_heads(v)
        sizes = [span.size for span in alignment.spans for _ in range(span.chunks)]
        parts = [y.split(sizes, dim) for y, dim in ((query, 1), (q, 2), (k, 2), (v, 2), (x, 1), (slots, 1))]
        masks = [None] * len(sizes) if alignment.mask is None else alignment.mask.split(sizes, 1)
        ends = [end for span in alignment.spans for end in span.ends()]
        return [Segment(*part) for part in zip(*parts, masks, ends, strict=True)]

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
        context = renew(carry.context, memory.memory.weights, s.end)
        keys, values = renew([keys, values], [torch.zeros_like(keys), torch.zeros_like(values)], s.end)
        return Carry(memory, context, keys, values), y * m if self.gate is None else self.gate(y, m)

    def _attend(self, carry: Carry, s: Segment) -> tuple[Tensor, Tensor, Tensor]:
        """Attend to persistent, retrieved and own tokens; returns y `[B, n, D]` and the buffers with this part in."""
        attention, slots = self.attention, s.slots.unsqueeze(1)  # [B, 1, n]
        attn_mask = torch.arange(self.segment_length, device=slots.device) <= slots.unsqueeze(-1)  # [B, 1, n, S]
        if self.retrieval is None:
            h = self._retrieve(s.query, carry.context)
            retrieved, answers = (attention.split_heads(y) for y in attention.project_alone(h))
            retrieved = attention.apply_rope(retrieved, slots)
            places = torch.cat([slots, slots + self.retrieved], 2)
            keys = _store(carry.keys, torch.cat([retrieved, s.k], 2), places, s.mask)
            values = _store(carry.values, torch.cat([answers, s.v], 2), places, s.mask)
            y = attention.attend(s.q, keys.to(s.q.dtype), values.to(s.q.dtype), torch.cat([attn_mask, attn_mask], -1))
        else:
            keys, values = _store(carry.keys, s.k, slots, s.mask), _store(carry.values, s.v, slots, s.mask)
            retrieved, answers = self._ask(carry.context, len(s.q))
            seen = torch.cat([attn_mask.new_ones(*attn_mask.shape[:3], self.retrieved), attn_mask], -1)
            all_keys, all_values = (torch.cat([a, b.to(a.dtype)], 2) for a, b in ((retrieved, keys), (answers, values)))
            y = attention.attend(s.q, all_keys, all_values, seen)
        y = attention.output(y, s.x)
        return y if self.gate is None else self.gate.attention_norm(s.x + y), keys, values

    def _retrieve(self, query: Tensor, context: list[Tensor]) -> Tensor:
        """`h = norm(M*(q))` for queries `[B, n, H_m, d_m]`, heads side by side: `[B, n, D]`."""
        h = self.memory.recall(query, context)
        h = h if self.retrieval_norm is None else self.retrieval_norm(h)
        return h.flatten(2)

    def _ask(self, context: list[Tensor], batch: int) -> tuple[Tensor, Tensor]:
        """Retrieve with the learned queries: keys and values of the answers, `[B, H, R, d]`."""
        assert self.retrieval is not None
        x = bounded(self.retrieval).expand(batch, -1, -1)
        conv_state = self.retrieval_proj.initial_conv_state()
        (query,), _ = self.retrieval_proj(x, None if conv_state is None else conv_state.expand(batch, -1, -1), None)
        h = self._retrieve(query, context)
        attention = self.attention
        keys, values = (attention.split_heads(y) for y in attention.project_alone(h))
        return attention.without_rope(keys), values


register_mixer("memory_as_context", MemoryAsContext)


def _store(buffer: Tensor, new: Tensor, places: Tensor, mask: Tensor | None) -> Tensor:
    """Put `new` `[B, H, m, d]` at `places` `[B, 1, m]` of the buffer, except where `mask` `[B, n]` is False."""
    new = new.to(buffer.dtype)
    if mask is None and new.shape == buffer.shape:
        return new  # a whole segment
    index = places.unsqueeze(-1).expand_as(new)
    if mask is not None:
        mask = mask.repeat(1, new.shape[2] // mask.shape[1])[:, None, :, None]
        new = torch.where(mask, new, buffer.gather(2, index))
    return buffer.scatter(2, index, new)
