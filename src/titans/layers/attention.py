"""Exact short-term attention: over a sliding window, and the projections that MAC shares with it."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any, ClassVar, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from titans.layers.mixer import Mixer, last
from titans.layers.registry import register_mixer
from titans.ops.state import State
from titans.ops.tracing import in_transform, require_static_length

PRECISIONS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


class AttentionState(State):
    """State of `SlidingWindowAttention`: its window.

    Args:
        keys: the last keys, without positions, `[B, W, H, d]`; the newest is the last.
        values: their values `[B, W, H, d]`.
        filled: how many of them are real, `[B]`; the first `W - filled` are not.
    """

    keys: Tensor
    values: Tensor
    filled: Tensor


class Attention(nn.Module):
    """Multi-head attention over whatever it is shown, with persistent tokens always in view.

    The first half of each head's channels carries rotary positions (Su et al., 2021), counted by the caller. Tokens
    without a position, such as persistent ones, have keys in the other half only.

    Args:
        hidden_size: width D; a multiple of `num_heads`.
        num_heads: attention heads H.
        persistent_tokens: learned tokens visible to every query. Default 0.
        rope_theta: base of the rotary frequencies. Default 10,000.

    Raises:
        ValueError: `hidden_size` is not a multiple of `num_heads`, a head has fewer than 4 channels, or
            `persistent_tokens` is negative.
    """

    component: ClassVar[str] = "attention"

    def __init__(
        self, hidden_size: int, num_heads: int, persistent_tokens: int = 0, rope_theta: float = 10_000.0
    ) -> None:
        super().__init__()
        if hidden_size % num_heads:
            raise ValueError(f"hidden_size={hidden_size} is not a multiple of num_heads={num_heads}")
        if hidden_size // num_heads < 4:
            raise ValueError(
                f"hidden_size={hidden_size} gives {num_heads} heads of {hidden_size // num_heads} channels: "
                "rotary positions need at least 4"
            )
        if persistent_tokens < 0:
            raise ValueError(f"persistent_tokens={persistent_tokens} must not be negative")
        self.hidden_size, self.num_heads, self.rope_theta = hidden_size, num_heads, rope_theta
        self.rotated = hidden_size // num_heads // 4 * 2  # channels of a head that carry positions
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (
            nn.Linear(hidden_size, hidden_size, bias=False) for _ in range(4)
        )
        self.persistent = nn.Parameter(torch.empty(persistent_tokens, hidden_size)) if persistent_tokens else None
        self.reset_parameters()

    @property
    def persistent_tokens(self) -> int:
        """How many persistent tokens there are."""
        return 0 if self.persistent is None else len(self.persistent)

    def reset_parameters(self) -> None:
        """Initialise the persistent tokens."""
        if self.persistent is not None:
            nn.init.normal_(self.persistent)

    def empty_buffer(self, batch_size: int, entries: int) -> Tensor:
        """Return zeros `[B, entries, D]` in place of keys or values."""
        return torch.zeros(batch_size, entries, self.hidden_size, **_kind(self.k_proj))

    def split_heads(self, x: Tensor) -> Tensor:
        """`[B, T, D]` to `[B, H, T, d]`."""
        split: Tensor = x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
        return split

    def apply_rope(self, x: Tensor, positions: Tensor) -> Tensor:
        """Give queries or keys a position: rotate the first half of their channels.

        Args:
            x: `[B, H, T, d]`.
            positions: `[T]`, or `[B, 1, T]`.

        Returns:
            The placed queries or keys `[B, H, T, d]`.
        """
        half = self.rotated // 2
        steps = torch.arange(half, device=x.device, dtype=torch.promote_types(x.dtype, torch.float32))
        angles = positions.unsqueeze(-1) * self.rope_theta ** (-steps / max(half, 1))
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        placed, rest = x.split([self.rotated, x.shape[-1] - self.rotated], -1)
        a, b = placed.chunk(2, -1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], -1)

    def without_rope(self, k: Tensor) -> Tensor:
        """Make keys `[..., d]` of tokens without a position: no channel that carries one."""
        return F.pad(k[..., self.rotated :], (self.rotated, 0))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None) -> Tensor:
        """Attend to persistent tokens and to `k`.

        Args:
            q: placed queries `[B, H, T, d]`.
            k: placed keys `[B, H, M, d]`.
            v: values `[B, H, M, d]`.
            attn_mask: which keys each query sees, bool, broadcastable to `[B, H, T, M]`; None where `M = T`, there are
                no persistent tokens, and a query sees its own key and those before.

        Returns:
            Outputs before the output projection, `[B, T, D]`.
        """
        if attn_mask is None:
            return _softmax_attention(q, k, v, is_causal=True)
        if self.persistent is not None:
            keys = self.without_rope(self.split_heads(self.k_proj(self.persistent).unsqueeze(0)))
            values = self.split_heads(self.v_proj(self.persistent).unsqueeze(0))
            k, v = (torch.cat([p.expand(x.shape[0], -1, -1, -1), x], 2) for p, x in ((keys, k), (values, v)))
            attn_mask = F.pad(attn_mask, (keys.shape[2], 0), value=True)
        return _softmax_attention(q, k, v, attn_mask=attn_mask)


def _softmax_attention(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """Attend, heads side by side: `[B, T, D]`. Only PyTorch's plain form of attention follows every transform."""
    with sdpa_kernel(SDPBackend.MATH) if in_transform() else nullcontext():
        return F.scaled_dot_product_attention(q, k, v, **options).transpose(1, 2).flatten(2)


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

    Raises:
        ValueError: `window` is below 1, or as `Attention`.
    """

    component: ClassVar[str] = "attention"

    def __init__(
        self, hidden_size: int, num_heads: int, window: int, persistent_tokens: int = 0, rope_theta: float = 10_000.0
    ) -> None:
        super().__init__()
        if window < 1:
            raise ValueError(f"window={window} must be at least 1")
        self.hidden_size, self.window = hidden_size, window
        self.attention = Attention(hidden_size, num_heads, persistent_tokens, rope_theta)
        self.view = f"{window:,} tokens" + (f", and {persistent_tokens} persistent ones" if persistent_tokens else "")

    @classmethod
    def from_config(cls, config: Any, **options: Any) -> Self:
        """Build the layer of a model; see `Mixer.from_config`."""
        options = {"persistent_tokens": config.num_persistent_tokens, "rope_theta": config.rope_theta, **options}
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
        return AttentionState(buffer, buffer, torch.zeros(batch_size, dtype=torch.long, device=buffer.device))

    def mix(self, x: Tensor, state: AttentionState, lengths: Tensor | None) -> tuple[Tensor, AttentionState]:
        """Attend from each token to its window; see `Mixer.mix`."""
        attention, window = self.attention, self.window
        batch, tokens, _ = x.shape
        require_static_length(tokens)
        k = torch.cat([state.keys.to(x.dtype), attention.k_proj(x)], 1)  # [B, W + T, D]
        v = torch.cat([state.values.to(x.dtype), attention.v_proj(x)], 1)
        count = tokens if lengths is None else lengths
        final = AttentionState(
            last(k, lengths, window).to(state.keys.dtype),
            last(v, lengths, window).to(state.values.dtype),
            (state.filled + count).clamp(max=window),
        )
        size = min(window, tokens)
        blocks = -(-tokens // size)
        padding = (0, 0, 0, blocks * size - tokens)
        q = F.pad(attention.q_proj(x), padding).unflatten(1, (blocks, size)).flatten(0, 1)  # [B * blocks, size, D]
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
        return attention.o_proj(y), final

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


def _kind(layer: nn.Module) -> dict[str, Any]:
    """Tell on which device and in which precision a linear layer's outputs are kept; float32 where it is quantised.

    A quantised layer need not have a tensor of numbers for its weight: it may be packed, a function, or absent.
    """
    tensors = [*layer.parameters(), *layer.buffers()]
    dtypes = [x.dtype for x in tensors if x.dtype in PRECISIONS]
    return {"device": tensors[0].device if tensors else None, "dtype": dtypes[0] if dtypes else torch.float32}
