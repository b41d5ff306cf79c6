"""Causal attention to everything that was read: what the fixed-size memories are measured against."""

from __future__ import annotations

from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from titans.layers.attention import Attention
from titans.layers.mixer import Mixer, last
from titans.layers.registry import register_mixer
from titans.ops.state import GrowingState


class FullAttentionState(GrowingState):
    """State of `FullAttention`: all that was read.

    Args:
        filled: tokens read, `[B]`, int64.
        keys: their keys, with positions, `[B, M, D]`; the newest is the last.
        values: their values `[B, M, D]`.
    """

    keys: Tensor
    values: Tensor


class FullAttention(Mixer):
    """Causal attention of each token to itself and to all tokens before it.

    Its state, the keys and values of all tokens, grows with the stream, and so does the time a token takes: the only
    mixer of which that is true. Attention and positions are those of `Attention`, without persistent tokens: half of a
    head's channels are rotated, the other half not. Positions count from the first token
    of the stream.

    Args:
        hidden_size: width D; a multiple of `num_heads`.
        num_heads: attention heads.
        rope_theta: base of the rotary frequencies. Default 10,000.

    Raises:
        ValueError: as `Attention`.
    """

    component: ClassVar[str] = "attention"
    view = "everything that was read"

    def __init__(self, hidden_size: int, num_heads: int, rope_theta: float = 10_000.0) -> None:
        super().__init__()
        self.hidden_size = hidden_size
        self.attention = Attention(hidden_size, num_heads, 0, rope_theta)

    @classmethod
    def from_config(cls, config: Any, **options: Any) -> Self:
        """Build the layer of a model; see `Mixer.from_config`."""
        return cls(config.hidden_size, config.num_attention_heads, config.rope_theta, **options)

    def flops(self, context: int) -> float:
        """Count 4 D for each key in view; see `Mixer.flops`."""
        return 4 * self.hidden_size * (context + 1) / 2

    def empty_state(self, batch_size: int) -> FullAttentionState:
        """Return a state without entries."""
        entries = self.attention.empty_buffer(batch_size, 0)
        return FullAttentionState(torch.zeros(batch_size, dtype=torch.long, device=entries.device), entries, entries)

    def mix(self, x: Tensor, state: FullAttentionState, lengths: Tensor | None) -> tuple[Tensor, FullAttentionState]:
        """Attend from each token to all up to it; see `Mixer.mix`."""
        attention, before, tokens = self.attention, state.length, x.shape[1]
        positions = state.filled.view(-1, 1, 1) + torch.arange(tokens, device=x.device)  # [B, 1, T]
        q, k = (attention.split_heads(layer(x)) for layer in (attention.q_proj, attention.k_proj))
        q = attention.apply_rope(q, positions)
        k = attention.apply_rope(k, positions).transpose(1, 2).flatten(2)
        keys = torch.cat([state.keys.to(k.dtype), k], 1)  # [B, M + T, D]
        values = torch.cat([state.values.to(k.dtype), attention.v_proj(x)], 1)
        attn_mask = None if before == 0 else _attn_mask(state.filled, before, tokens)
        y = attention.attend(q, attention.split_heads(keys), attention.split_heads(values), attn_mask)
        return attention.o_proj(y), _after(state, keys, values, lengths)


register_mixer("full_attention", FullAttention)


def _attn_mask(filled: Tensor, before: int, tokens: int) -> Tensor:
    """Tell which of M carried and T new keys each new token sees, `[B, 1, T, M + T]`."""
    key = torch.arange(before + tokens, device=filled.device)
    causal = key <= before + torch.arange(tokens, device=filled.device).unsqueeze(1)  # [T, M + T]
    real = key >= before - filled.unsqueeze(1)  # [B, M + T]
    return (real.unsqueeze(1) & causal).unsqueeze(1)


def _after(state: FullAttentionState, keys: Tensor, values: Tensor, lengths: Tensor | None) -> FullAttentionState:
    """Keep the carried and new keys and values that count, `[B, M + T, D]`, the newest at the end."""
    keys, values = keys.to(state.keys.dtype), values.to(state.values.dtype)
    if lengths is None:
        return FullAttentionState(state.filled + keys.shape[1] - state.length, keys, values)
    new = keys.shape[1] - state.length
    keys, values = (torch.cat([y.new_zeros(len(y), new, y.shape[2]), y], 1) for y in (keys, values))
    count = state.length + new  # of the N + M entries before the last token that counts
    final = FullAttentionState(state.filled + lengths, last(keys, lengths, count), last(values, lengths, count))
    return final.trimmed()
