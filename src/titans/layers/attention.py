"""Exact attention over what it is shown, and its projections: what sliding windows, segments and streams share."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from titans.layers.projection import ConvolvedProjection
from titans.ops.gated_rms_norm import gated_rms_norm
from titans.ops.short_conv import short_conv_qkv
from titans.ops.tracing import in_transform

OUTPUT_EPS = 1e-6
PRECISIONS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


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
        """Make keys and values `[..., T, D]` of tokens that have no neighbours: persistent and retrieved ones."""
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
            keys, values = (self.split_heads(y.unsqueeze(0)) for y in self.project_alone(self.persistent))
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
        y = y.view(-1, *y.shape[-2:])  # [B, T, 3 D]
        _, k, v = short_conv_qkv(y, None, None, self.num_heads, self.qkv_proj.norms)
        return k.reshape(x.shape), v.reshape(x.shape)

    def output(self, y: Tensor, x: Tensor) -> Tensor:
        """Normalise, gate and project; see `Attention.output`."""
        y, gate = (z.unflatten(-1, (self.num_heads, -1)) for z in (y, self.g_proj(x)))
        out: Tensor = self.o_proj(gated_rms_norm(y, gate, self.o_norm.weight, OUTPUT_EPS).flatten(2))
        return out


def _softmax_attention(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """Attend, heads side by side: `[B, T, D]`. Only PyTorch's plain form of attention follows every transform."""
    with sdpa_kernel(SDPBackend.MATH) if in_transform() else nullcontext():
        return F.scaled_dot_product_attention(q, k, v, **options).transpose(1, 2).flatten(2)


def _kind(layer: nn.Module) -> dict[str, Any]:
    """Tell on which device and in which precision a linear layer's outputs are kept; float32 where it is quantised.

    A quantised layer need not have a tensor of numbers for its weight: it may be packed, a function, or absent.
    """
    tensors = [*layer.parameters(), *layer.buffers()]
    dtypes = [x.dtype for x in tensors if x.dtype in PRECISIONS]
    return {"device": tensors[0].device if tensors else None, "dtype": dtypes[0] if dtypes else torch.float32}
