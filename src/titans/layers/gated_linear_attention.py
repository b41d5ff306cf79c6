"""Gated linear attention: a decay of each key channel, from the input."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from titans.layers.linear_recurrence import LinearRecurrence, head_dim
from titans.layers.mixer import check_positive, precise
from titans.layers.registry import register_mixer

TEMPERATURE = 16.0


class GatedLinearAttention(LinearRecurrence):
    """GLA (Yang et al., 2024, *Gated Linear Attention Transformers*, arXiv 2312.06635, section 4.4).

    Per head:

        q, k, v = x W_Q / sqrt(d_k), x W_K, x W_V
        a_t = sigmoid(x_t W_1 W_2 + b)^(1/16)                one decay a key channel
        S_t = diag(a_t) S_{t-1} + k_t^T v_t
        y_t = q_t S_t
        o_t = (RMSNorm(y_t) * SiLU(x_t W_G)) W_O

    The norm has a scale that the heads share.

    Args:
        hidden_size: width D; a multiple of `num_heads`.
        num_heads: memory heads H.
        head_k_dim: channels d_k of a head's queries and keys. Default: half of `D / H`, rounded up, as published.
        head_v_dim: channels d_v of a head's values. Default: `D / H`.
        rank: of the decay's projection. Default 16.
        chunk_size: tokens that are treated together; changes speed only. Default 64.

    Raises:
        ValueError: a value is out of range or two do not fit together.
    """

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        *,
        head_k_dim: int | None = None,
        head_v_dim: int | None = None,
        rank: int = 16,
        chunk_size: int = 64,
    ) -> None:
        width = head_dim(hidden_size, num_heads)
        head_k_dim = (width + 1) // 2 if head_k_dim is None else head_k_dim
        super().__init__(
            hidden_size,
            num_heads,
            head_k_dim,
            width if head_v_dim is None else head_v_dim,
            qk_l2norm=False,
            use_short_conv=False,
            gate=True,
            chunk_size=chunk_size,
        )
        check_positive(rank=rank)
        self.gk_proj = nn.Sequential(nn.Linear(hidden_size, rank, bias=False), nn.Linear(rank, num_heads * head_k_dim))

    def gates(self, x: Tensor) -> tuple[Tensor, None]:
        """Return the decays of the key channels, `[B, T, H, d_k]`; see `LinearRecurrence.gates`."""
        return F.logsigmoid(precise(self.gk_proj(x))).unflatten(-1, (self.num_heads, -1)) / TEMPERATURE, None


register_mixer("gated_linear_attention", GatedLinearAttention)
