"""Gated DeltaNet: the delta rule on a memory that also decays."""

from __future__ import annotations

from typing import Any, ClassVar, Self

from torch import Tensor, nn

from titans.layers.linear_recurrence import LinearRecurrence, head_dim
from titans.layers.mixer import precise
from titans.layers.registry import register_mixer
from titans.layers.time_step import TimeStep


class GatedDeltaNet(LinearRecurrence):
    """Gated DeltaNet (Yang, Kautz & Hatamizadeh, 2025, *Gated Delta Networks*, arXiv 2412.06464).

    Per head:

        q, k, v = SiLU(conv(x W_Q)), SiLU(conv(x W_K)), SiLU(conv(x W_V)),   q and k of unit length
        beta_t = sigmoid(x_t W_beta)
        a_t = exp(-A softplus(x_t W_a + b))                  one decay a head
        S_t = a_t S_{t-1} + beta_t k_t^T (v_t - k_t a_t S_{t-1})
        y_t = q_t S_t
        o_t = (RMSNorm(y_t) * SiLU(x_t W_G)) W_O

    The norm has a scale that the heads share.

    Args:
        hidden_size: width D; a multiple of `num_heads`.
        num_heads: memory heads H.
        head_k_dim: channels d_k of a head's queries and keys. Default: 3/4 of `D / H`, rounded up, as published.
        head_v_dim: channels d_v of a head's values. Default: twice the default of d_k, as published.
        use_short_conv: short convolutions on queries, keys and values. Default True.
        chunk_size: tokens that are treated together; changes speed only. Default 64.

    Raises:
        ValueError: a value is out of range or two do not fit together.
    """

    delta_rule: ClassVar[bool] = True

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        *,
        head_k_dim: int | None = None,
        head_v_dim: int | None = None,
        use_short_conv: bool = True,
        chunk_size: int = 64,
    ) -> None:
        width = -(-3 * head_dim(hidden_size, num_heads) // 4)
        super().__init__(
            hidden_size,
            num_heads,
            width if head_k_dim is None else head_k_dim,
            2 * width if head_v_dim is None else head_v_dim,
            qk_l2norm=True,
            use_short_conv=use_short_conv,
            gate=True,
            chunk_size=chunk_size,
        )
        self.b_proj = nn.Linear(hidden_size, num_heads, bias=False)
        self.time_step = TimeStep(hidden_size, num_heads)

    @classmethod
    def from_config(cls, config: Any, **options: Any) -> Self:
        """Build the layer of a model; see `Mixer.from_config`."""
        return super().from_config(config, **{"use_short_conv": config.memory.use_short_conv, **options})

    def gates(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the decays and the step sizes, `[B, T, H]` each; see `LinearRecurrence.gates`."""
        _, log_decay = self.time_step(x)
        return log_decay, precise(self.b_proj(x)).sigmoid()


register_mixer("gated_delta_net", GatedDeltaNet)
