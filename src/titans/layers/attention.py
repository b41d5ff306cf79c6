"""Exact short-term attention: over a sliding window, and the projections that MAC shares with it."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any, ClassVar, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from titans.layers.mixer import Mixer, last
from titans.layers.projection import ConvolvedProjection
from titans.layers.registry import register_mixer
from titans.ops.gated_rms_norm import gated_rms_norm
from titans.ops.short_conv import short_conv_qkv
from titans.ops.state import State
from titans.ops.tracing import in_transform, require_static_length

OUTPUT_EPS = 1e-6
PRECISIONS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


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
    scale: float | None = None  # of the logits; None: one over the root of a head's width

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
        self.make_projections()
        self.persistent = nn.Parameter(torch.empty(persistent_tokens, hidden_size)) if persistent_tokens else None
        self.reset_parameters()

    def make_projections(self) -> None:
        """Make the layers before and after the attention."""
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (
            nn.Linear(self.hidden_size, self.hidden_size, bias=False) for _ in range(4)
        )

    def initial_conv_state(self) -> Tensor | None:
        """Return what a convolution of the projections saw before the first token; None where there is none."""
        return None

    def project(
        self, x: Tensor, conv_state: Tensor | None, lengths: Tensor | None
    ) -> tuple[tuple[Tensor, Tensor, Tensor], Tensor | None]:
        """Make queries, keys and values, without positions.

        Args:
            x: the next tokens of a stream, `[B, T, D]`.
            conv_state: carried from the tokens before.
            lengths: tokens that count in each row `[B]`; None for all.

        Returns:
            Queries, keys and values, `[B, T, D]` each, heads side by side, and the convolution's state.
        """
        return (self.q_proj(x), self.k_proj(x), self.v_proj(x)), conv_state

    def project_alone(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Make keys and values `[B, T, D]` of tokens that have no neighbours: persistent and retrieved ones."""
        return self.k_proj(x), self.v_proj(x)

    def output(self, y: Tensor, x: Tensor) -> Tensor:
        """Turn what was attended to, `[B, T, D]`, into the output for the tokens x, `[B, T, D]`."""
        out: Tensor = self.o_proj(y)
        return out

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
        return torch.zeros(batch_size, entries, self.hidden_size, **_kind(self.o_proj))

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
            return _softmax_attention(q, k, v, is_causal=True, scale=self.scale)
        if self.persistent is not None:
            keys, values = (self.split_heads(y) for y in self.project_alone(self.persistent.unsqueeze(0)))
            keys = self.without_rope(keys)
            k, v = (torch.cat([p.expand(x.shape[0], -1, -1, -1), x], 2) for p, x in ((keys, k), (values, v)))
            attn_mask = F.pad(attn_mask, (keys.shape[2], 0), value=True)
        return _softmax_attention(q, k, v, attn_mask=attn_mask, scale=self.scale)


class PaperAttention(Attention):
    """Attention whose projections are those of the memory layer, as the paper has them (docs/semantics.md, section 4).

    Queries, keys and values are `SiLU(conv(x W))`, queries and keys of unit length per head; what was attended to is
    normalised per head, gated by the input and projected. Logits are multiplied by the root of a head's width, at which
    unit vectors differ as others do. Persistent and retrieved tokens have no neighbours, and pass no convolution.
    """

    def make_projections(self) -> None:
        """Make the layers before and after the attention."""
        head_dim = self.hidden_size // self.num_heads
        self.scale = head_dim**0.5
        self.qkv_proj = ConvolvedProjection(self.hidden_size, self.num_heads, ("l2norm", "l2norm", "none"), True)
        self.o_norm = nn.RMSNorm(head_dim, eps=OUTPUT_EPS)
        self.g_proj, self.o_proj = (nn.Linear(self.hidden_size, self.hidden_size, bias=False) for _ in range(2))

    def initial_conv_state(self) -> Tensor | None:
        """Return the convolution's inputs before the first token; see `Attention.initial_conv_state`."""
        return self.qkv_proj.initial_conv_state()

    def project(
        self, x: Tensor, conv_state: Tensor | None, lengths: Tensor | None
    ) -> tuple[tuple[Tensor, Tensor, Tensor], Tensor | None]:
        """Make queries, keys and values; see `Attention.project`."""
        (q, k, v), conv_state = self.qkv_proj(x, conv_state, lengths)
        return (q.flatten(2), k.flatten(2), v.flatten(2)), conv_state

    def project_alone(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Make keys and values without a convolution; see `Attention.project_alone`."""
        y = self.qkv_proj.linear(x)
        _, k, v = short_conv_qkv(y, None, None, self.num_heads, self.qkv_proj.norms)
        return k.flatten(2), v.flatten(2)

    def output(self, y: Tensor, x: Tensor) -> Tensor:
        """Normalise, gate and project; see `Attention.output`."""
        y, gate = (z.unflatten(-1, (self.num_heads, -1)) for z in (y, self.g_proj(x)))
        out: Tensor = self.o_proj(gated_rms_norm(y, gate, self.o_norm.weight, OUTPUT_EPS).flatten(2))
        return out


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


def _kind(layer: nn.Module) -> dict[str, Any]:
    """Tell on which device and in which precision a linear layer's outputs are kept; float32 where it is quantised.

    A quantised layer need not have a tensor of numbers for its weight: it may be packed, a function, or absent.
    """
    tensors = [*layer.parameters(), *layer.buffers()]
    dtypes = [x.dtype for x in tensors if x.dtype in PRECISIONS]
    return {"device": tensors[0].device if tensors else None, "dtype": dtypes[0] if dtypes else torch.float32}
