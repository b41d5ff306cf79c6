"""DeltaNet: what a key held before is replaced instead of added to."""

from __future__ import annotations

from torch import Tensor, nn

from titans.layers.linear_recurrence import LinearRecurrence, head_width
from titans.layers.mixer import precise


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
        dim: width D; a multiple of `heads`.
        heads: memory heads H.
        key_width: channels d_k of a head's queries and keys. Default: `D / H`.
        value_width: channels d_v of a head's values. Default: `D / H`.
        convolution: short convolutions on queries, keys and values. Default True.
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
        convolution: bool = True,
        chunk_size: int = 64,
    ) -> None:
        width = head_width(dim, heads)
        super().__init__(
            dim,
            heads,
            width if key_width is None else key_width,
            width if value_width is None else value_width,
            unit=True,
            convolution=convolution,
            gate=False,
            chunk_size=chunk_size,
        )
        self.step = nn.Linear(dim, heads, bias=False)

    def gates(self, x: Tensor) -> tuple[None, Tensor]:
        """Return the step sizes `[B, N, H]`; see `LinearRecurrence.gates`."""
        return None, precise(self.step(x)).sigmoid()
