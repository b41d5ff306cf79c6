"""DeltaNet: what a key held before is replaced instead of added to."""

from __future__ import annotations

from typing import Any, ClassVar, Self

from torch import Tensor, nn

from titans.layers.linear_recurrence import LinearRecurrence, head_dim
from titans.layers.mixer import precise
from titans.layers.registry import register_mixer


class DeltaNet(LinearRecurrence):
    """DeltaNet (Yang et al., 2024, *Parallelizing Linear Transformers with the Delta Rule*, arXiv 2406.06484).

    Per head:

        q, k, v = SiLU(conv(x W_Q)), SiLU(conv(x W_K)), SiLU(conv(x W_V)),   q and k of unit length
        beta_t = sigmoid(x_t W_beta)
        S_t = S_{t-1} + beta_t k_t^T (v_t - k_t S_{t-1})
        y_t = q_t S_t
        o_t = RMSNorm(y_t) W_O

    The norm has a scale that the heads share. `titans.NeuralMemory` with a matrix, rule "token", no momentum and no
    forgetting writes in the same way, `beta = 2 theta`.

    Args:
        hidden_size: width D; a multiple of `num_heads`.
        num_heads: memory heads H.
        head_k_dim: channels d_k of a head's queries and keys. Default: `D / H`.
        head_v_dim: channels d_v of a head's values. Default: `D / H`.
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
        width = head_dim(hidden_size, num_heads)
        super().__init__(
            hidden_size,
            num_heads,
            width if head_k_dim is None else head_k_dim,
            width if head_v_dim is None else head_v_dim,
            qk_l2norm=True,
            use_short_conv=use_short_conv,
            gate=False,
            chunk_size=chunk_size,
        )
        self.b_proj = nn.Linear(hidden_size, num_heads, bias=False)

    @classmethod
    def from_config(cls, config: Any, **options: Any) -> Self:
        """Build the layer of a model; see `Mixer.from_config`."""
        return super().from_config(config, **{"use_short_conv": config.memory.use_short_conv, **options})

    def gates(self, x: Tensor) -> tuple[None, Tensor]:
        """Return the step sizes `[B, T, H]`; see `LinearRecurrence.gates`."""
        return None, precise(self.b_proj(x)).sigmoid()


register_mixer("delta_net", DeltaNet)
