"""Linear projection to heads with a causal short convolution: how queries, keys and values are made."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from titans.layers.mixer import last
from titans.ops.short_conv import short_conv_qkv
from titans.ops.tracing import is_dynamic

TAPS = 4  # inputs that the convolution sees, the present one included


def no_inputs(taps: Tensor) -> Tensor:
    """Return what a convolution with `taps` `[K, C]` saw before the first token: zeros `[1, K - 1, C]`."""
    return torch.zeros(1, len(taps) - 1, taps.shape[1], dtype=taps.dtype, device=taps.device)


class ConvolvedProjection(nn.Module):
    """`SiLU(conv(x W))`, depthwise-separable (semantics, section 4).

    Args:
        dim: width D of the input and of each part.
        heads: heads H of each part.
        norms: of the parts, such as queries, keys and values: "none", "l2norm" or "clip_rms" (`titans.ops.short_conv`).
        convolution: off: `SiLU(x W)`.
    """

    def __init__(self, dim: int, heads: int, norms: Sequence[str], convolution: bool) -> None:
        super().__init__()
        self.heads, self.norms, parts = heads, norms, len(norms)
        self.linear = nn.Linear(dim, parts * dim, bias=False)
        self.taps = nn.Parameter(torch.empty(TAPS, parts * dim)) if convolution else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise the taps as `torch.nn.Conv1d` does."""
        if self.taps is not None:
            nn.init.uniform_(self.taps, -(TAPS**-0.5), TAPS**-0.5)

    def initial_tail(self) -> Tensor | None:
        """Return the convolution's inputs before the first token, `[1, 3, parts D]`; None without convolution."""
        return None if self.taps is None else no_inputs(self.taps)

    def forward(
        self, x: Tensor, tail: Tensor | None, lengths: Tensor | None
    ) -> tuple[tuple[Tensor, ...], Tensor | None]:
        """Project the next tokens of a stream.

        Args:
            x: `[B, N, D]`, bounded.
            tail: the convolution's inputs before x, `[B, 3, parts D]`; None without convolution.
            lengths: tokens that count in each row `[B]`; None for all.

        Returns:
            The parts, `[B, H, N, D / H]` each, and the tail after x.
        """
        y = self.linear(x)
        parts = short_conv_qkv(y, self.taps, tail, self.heads, self.norms)
        if tail is not None:
            short = lengths is None and not is_dynamic(y.shape[1])
            recent = y[:, -tail.shape[1] :] if short else y
            tail = last(torch.cat([tail.to(y.dtype), recent], 1), lengths, tail.shape[1]).to(tail.dtype)
        return parts, tail
