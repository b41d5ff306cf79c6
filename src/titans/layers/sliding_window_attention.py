"""Exact attention over a sliding window."""

from __future__ import annotations

from typing import Any, ClassVar, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from titans.layers.attention import Attention, PaperAttention
from titans.layers.mixer import Mixer, last
from titans.layers.registry import register_mixer
from titans.ops.state import State
from titans.ops.tracing import require_static_length


class AttentionState(State):
    """State of `SlidingWindowAttention`: its window.

    Args:
        keys: the last keys, without positions, `[B, W, H, d]`; the newest is the last.
        values: their values `[B, W, H, d]`.
        filled: how many of them are real, `[B]`; the first `W - filled` are not.
        conv_state: last inputs of the short convolution, `[B, 3, 3 D]`; None without one.
    """

    keys: Tensor
    values: Tensor
    filled: Tensor
    conv_state: Tensor | None = None


class SlidingWindowAttention(Mixer):
    """Causal attention of each token to itself, the `window - 1` tokens before it and the persistent tokens.

    Positions are relative within the window, so outputs do not depend on how far the stream has run. Cost is
    linear in the number of tokens: the stream is cut into blocks of one window, each attending to itself and
    the block before.

    Args:
        hidden_size: width D; a multiple of `num_heads`.
        num_heads: attention heads.
        window: tokens in view, the present one included.
        persistent_tokens: learned tokens always in view. Default 0.
        rope_theta: base of the rotary frequencies. Default 10,000.
        paper_form: projections as of `PaperAttention`. Default False.

    Raises:
        ValueError: `window` is below 1, or as `Attention`.
    """

    component: ClassVar[str] = "attention"

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        window: int,
        persistent_tokens: int = 0,
        rope_theta: float = 10_000.0,
        paper_form: bool = False,
    ) -> None:
        super().__init__()
        if window < 1:
            raise ValueError(f"window={window} must be at least 1")
        self.hidden_size, self.window = hidden_size, window
        kind = PaperAttention if paper_form else Attention
        self.attention = kind(hidden_size, num_heads, persistent_tokens, rope_theta)
        self.view = f"{window:,} tokens" + (f", and {persistent_tokens} persistent ones" if persistent_tokens else "")

    @classmethod
    def from_config(cls, config: Any, **options: Any) -> Self:
        """Build the layer of a model; see `Mixer.from_config`."""
        options = {
            "persistent_tokens": config.num_persistent_tokens,
            "rope_theta": config.rope_theta,
            "paper_form": config.paper_form,
            **options,
        }
        return cls(config.hidden_size, config.num_attention_heads, config.sliding_window, **options)

    def flops(self, context: int) -> float:
        """Count 4 D for each key in view; see `Mixer.flops`."""
        inside = min(context, self.window)  # tokens that see all before them
        in_view = (inside * (inside + 1) / 2 + (context - inside) * self.window) / context
        return 4 * self.hidden_size * (in_view + self.attention.persistent_tokens)

    def state_limits(self) -> dict[str, int]:
        """Return the largest number of keys; see `Mixer.state_limits`."""
        return {"filled": self.window}

    def empty_state(self, batch_size: int) -> AttentionState:
        """Return an empty window."""
        buffer = self.attention.empty_buffer(batch_size, self.window)
        filled = torch.zeros(batch_size, dtype=torch.long, device=buffer.device)
        conv_state = self.attention.initial_conv_state()
        return AttentionState(
            buffer, buffer, filled, None if conv_state is None else conv_state.expand(batch_size, -1, -1)
        )

    def mix(self, x: Tensor, state: AttentionState, lengths: Tensor | None) -> tuple[Tensor, AttentionState]:
        """Attend from each token to its window; see `Mixer.mix`."""
        attention, window = self.attention, self.window
        batch, tokens, _ = x.shape
        require_static_length(tokens)
        (q, k, v), conv_state = attention.project(x, state.conv_state, lengths)
        k = torch.cat([state.keys.to(k.dtype), k], 1)  # [B, W + T, D]
        v = torch.cat([state.values.to(v.dtype), v], 1)
        count = tokens if lengths is None else lengths
        final = AttentionState(
            last(k, lengths, window).to(state.keys.dtype),
            last(v, lengths, window).to(state.values.dtype),
            (state.filled + count).clamp(max=window),
            conv_state,
        )
        size = min(window, tokens)
        blocks = -(-tokens // size)
        padding = (0, 0, 0, blocks * size - tokens)
        q = F.pad(q, padding).unflatten(1, (blocks, size)).flatten(0, 1)  # [B * blocks, size, D]
        k, v = (F.pad(y, padding).unfold(1, window + size, size).transpose(2, 3).flatten(0, 1) for y in (k, v))
        q, k, v = (attention.split_heads(y) for y in (q, k, v))
        here = torch.arange(window + size, device=x.device)
        y = attention.attend(
            attention.apply_rope(q, here[window:]),
            attention.apply_rope(k, here),
            v,
            self._attn_mask(here, blocks, state.filled),
        )
        y = y.unflatten(0, (batch, blocks)).flatten(1, 2)[:, :tokens]
        return attention.output(y, x), final

    def _attn_mask(self, here: Tensor, blocks: int, filled: Tensor) -> Tensor:
        """Tell which of a block's window and own keys each query sees: `[B * blocks, 1, size, W + size]`."""
        back = here[self.window :].unsqueeze(1) - here  # how far back each key lies
        near = (back >= 0) & (back < self.window)
        first = here >= self.window - filled.unsqueeze(1)  # [B, W + size], in the first block: not the empty entries
        real = torch.ones(len(filled), blocks, len(here), dtype=torch.bool, device=here.device)
        real[:, 0] = first
        return (real.flatten(0, 1).unsqueeze(1) & near).unsqueeze(1)


register_mixer("attention", SlidingWindowAttention)
register_mixer("attention_alone", SlidingWindowAttention, persistent_tokens=0)
