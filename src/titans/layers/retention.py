"""RetNet's retention: linear attention with a fixed decay for each head."""

from __future__ import annotations

import torch
from torch import Tensor

from titans.layers.linear_recurrence import LinearRecurrence, head_dim
from titans.layers.registry import register_mixer


class Retention(LinearRecurrence):
    """Multi-scale retention (Sun et al., 2023, *Retentive Network*, arXiv 2307.08621, equations 6 to 8).

    Per head h, counted from 0, with `gamma_h = 1 - 2^(-5 - h)`:

        q, k, v = x W_Q / sqrt(d_k), x W_K, x W_V
        S_t = gamma_h S_{t-1} + k_t^T v_t
        y_t = q_t S_t
        o_t = (GroupNorm(y_t) * SiLU(x_t W_G)) W_O

    with one group of the norm a head, whose scale the heads share. Queries and keys are not rotated (the paper's
    xPos): positions come from the decay alone, so nothing depends on an absolute position.

    Args:
        hidden_size: width D; a multiple of `num_heads`.
        num_heads: memory heads H.
        head_k_dim: channels d_k of a head's queries and keys. Default: `D / H`.
        head_v_dim: channels d_v of a head's values. Default: `2 D / H`, as published.
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
        chunk_size: int = 64,
    ) -> None:
        width = head_dim(hidden_size, num_heads)
        super().__init__(
            hidden_size,
            num_heads,
            width if head_k_dim is None else head_k_dim,
            2 * width if head_v_dim is None else head_v_dim,
            qk_l2norm=False,
            use_short_conv=False,
            gate=True,
            chunk_size=chunk_size,
        )

    def gates(self, x: Tensor) -> tuple[Tensor, None]:
        """Return the fixed decays `[B, T, H]`; see `LinearRecurrence.gates`."""
        dtype = torch.promote_types(x.dtype, torch.float32)
        head = torch.arange(self.num_heads, device=x.device, dtype=dtype)
        return torch.log1p(-torch.exp2(-5 - head)).expand(*x.shape[:2], -1), None

    def norm_and_gate(self, y: Tensor, x: Tensor) -> Tensor:
        """Normalise each head to mean 0 as well, as a group norm does; see `LinearRecurrence.norm_and_gate`."""
        return super().norm_and_gate(y - y.mean(-1, keepdim=True), x)


register_mixer("retention", Retention)
