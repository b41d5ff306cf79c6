"""Gated linear attention: a decay of each key channel, from the input."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from titans.layers.linear_recurrence import LinearRecurrence, check_positive, head_width
from titans.layers.mixer import precise

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
        dim: width D; a multiple of `heads`.
        heads: memory heads H.
        key_width: channels d_k of a head's queries and keys. Default: half of `D / H`, rounded up, as published.
        value_width: channels d_v of a head's values. Default: `D / H`.
        rank: of the decay's projection. Default 16.
        chunk_size: tokens that are treated together; changes speed only. Default 64.

    Raises:
        ValueError: a value is out of range or two do not fit together.
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        key_width: int | None = None,
        value_width: int | None = None,
        rank: int = 16,
        chunk_size: int = 64,
    ) -> None:
        width = head_width(dim, heads)
        key_width = (width + 1) // 2 if key_width is None else key_width
        super().__init__(
            dim,
            heads,
            key_width,
            width if value_width is None else value_width,
            unit=False,
            convolution=False,
            gate=True,
            chunk_size=chunk_size,
        )
        check_positive(rank=rank)
        self.decay = nn.Sequential(nn.Linear(dim, rank, bias=False), nn.Linear(rank, heads * key_width))

    def gates(self, x: Tensor) -> tuple[Tensor, None]:
        """Return the decays of the key channels, `[B, N, H, d_k]`; see `LinearRecurrence.gates`."""
        return F.logsigmoid(precise(self.decay(x))).unflatten(-1, (self.heads, -1)) / TEMPERATURE, None
